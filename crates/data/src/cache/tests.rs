use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

const KIND: EntryKind = EntryKind::Tokens;

fn key() -> String {
    blake3::hash(b"a").to_hex().to_string()
}

fn read(path: &Path) -> Result<String> {
    let text = fs::read_to_string(path.join("tokens.bin")).map_err(DataError::io(path))?;
    if text.is_empty() { Err(DataError::damaged(path, "empty")) } else { Ok(text) }
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path.join("tokens.bin"), text).map_err(DataError::io(path))
}

#[test]
fn an_entry_is_built_once_and_found_again() {
    let dir = tempfile::tempdir().unwrap();
    let cache = DataCache::open(dir.path()).unwrap();
    let built = cache.open_or_build(KIND, &key(), &|_| (), &read, &mut |p| write(p, "one")).unwrap();
    let found = cache.open_or_build(KIND, &key(), &|_| (), &read, &mut |p| write(p, "two")).unwrap();
    assert_eq!((built, found), (("one".into(), false), ("one".into(), true)));
}

#[test]
fn a_failed_build_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let cache = DataCache::open(dir.path()).unwrap();
    let mut fail = |p: &Path| {
        write(p, "half")?;
        Err(DataError::file(p, "stopped"))
    };
    assert!(cache.open_or_build(KIND, &key(), &|_| (), &read, &mut fail).is_err());
    assert!(!cache.path(KIND, &key()).exists());
    assert_eq!(fs::read_dir(dir.path().join("tmp")).unwrap().count(), 1, "only the lock file");
}

#[test]
fn a_damaged_entry_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let cache = DataCache::open(dir.path()).unwrap();
    fs::create_dir_all(cache.path(KIND, &key())).unwrap();
    fs::write(cache.path(KIND, &key()).join("tokens.bin"), "").unwrap();
    let (text, hit) = cache.open_or_build(KIND, &key(), &|_| (), &read, &mut |p| write(p, "whole")).unwrap();
    assert_eq!((text.as_str(), hit), ("whole", false));
}

#[test]
fn a_damaged_entry_with_files_of_the_user_stays() {
    let dir = tempfile::tempdir().unwrap();
    let cache = DataCache::open(dir.path()).unwrap();
    let path = cache.path(KIND, &key());
    let build = || cache.open_or_build(KIND, &key(), &|_| (), &read, &mut |p| write(p, "whole"));
    for own in ["tokens.bin", "documents.bin"] {
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join(own), "").unwrap();
        fs::write(path.join("notes.txt"), "mine").unwrap();
        let text = build().unwrap_err().to_string();
        assert!(text.contains("it contains files that runner did not write; move it away"), "{text}");
        assert_eq!(fs::read(path.join("notes.txt")).unwrap(), b"mine");
        fs::remove_dir_all(&path).unwrap();
    }
    // Behind a link.
    let elsewhere = tempfile::tempdir().unwrap();
    fs::write(elsewhere.path().join("tokens.bin"), "").unwrap();
    std::os::unix::fs::symlink(elsewhere.path(), &path).unwrap();
    assert!(build().unwrap_err().to_string().contains("move it away"));
    assert!(elsewhere.path().join("tokens.bin").exists() && path.is_symlink());
    fs::remove_file(&path).unwrap();
    // An empty folder is of no use to anybody.
    fs::create_dir_all(&path).unwrap();
    assert_eq!(build().unwrap(), ("whole".to_owned(), false));
}

#[test]
fn files_of_a_tokenizer_are_verified_when_they_are_opened() {
    let dir = tempfile::tempdir().unwrap();
    let cache = DataCache::open(dir.path()).unwrap();
    let open = |path: &Path| fs::read_to_string(path.join("tokenizer.json")).map_err(DataError::io(path));
    let get = || {
        let mut build = |path: &Path| fs::write(path.join("tokenizer.json"), "abc").map_err(DataError::io(path));
        cache.open_or_build(EntryKind::Tokenizers, &key(), &|_| (), &open, &mut build).unwrap()
    };
    assert_eq!([get(), get()], [("abc".to_owned(), false), ("abc".to_owned(), true)]);
    let file = cache.path(EntryKind::Tokenizers, &key()).join("tokenizer.json");
    fs::write(&file, "abd").unwrap();
    assert_eq!([get(), get()], [("abc".to_owned(), false), ("abc".to_owned(), true)]);
    // Without its hashes it is built again.
    fs::remove_file(file.with_file_name("hashes.json")).unwrap();
    assert!(!get().1);
}

#[test]
fn a_memo_is_read_under_its_name_only_and_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let cache = DataCache::open(dir.path()).unwrap();
    let path = |name: &str| dir.path().join("scans").join(format!("{name}.json"));
    let read = |name| cache.read_memo::<(u64, u64)>("scans", name);
    cache.write_memo("scans", "a", &(7_u64, u64::MAX));
    assert_eq!(read("a"), Some((7, u64::MAX)));
    let text = fs::read_to_string(path("a")).unwrap();
    fs::write(path("b"), &text).unwrap();
    fs::write(path("a"), text.replacen('7', "3", 1)).unwrap();
    assert_eq!((read("a"), read("b"), read("c")), (None, None, None));
    // Nothing waits for the other end of a pipe.
    fs::remove_file(path("a")).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(path("a")).status().unwrap().success());
    assert_eq!(read("a"), None);
    cache.write_memo("scans", "a", &(7_u64, 1_u64));
    assert_eq!(read("a"), None);
}

#[test]
fn pipes_in_place_of_entries_and_locks_are_refused_without_waiting() {
    let dir = tempfile::tempdir().unwrap();
    let cache = DataCache::open(dir.path()).unwrap();
    let get = || cache.open_or_build(KIND, &key(), &|_| (), &read, &mut |p| write(p, "one"));
    let make_pipe = |path: &Path| {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
    };
    make_pipe(&cache.path(KIND, &key()));
    let text = get().unwrap_err().to_string();
    assert!(text.contains("it is not a folder") && text.contains("move it away"), "{text}");
    assert!(!cache.evict(KIND, &key()).unwrap());
    let building = dir.path().join(LOCKS).join(format!("tokens-{}", key()));
    fs::remove_file(&building).unwrap();
    make_pipe(&building);
    let text = get().unwrap_err().to_string();
    assert!(text.contains("it cannot be rebuilt") && text.contains("this is a pipe, not a file"), "{text}");
}

#[test]
fn leftovers_go_and_work_in_progress_stays() {
    let dir = tempfile::tempdir().unwrap();
    let cache = DataCache::open(dir.path()).unwrap();
    let dead = dir.path().join("tmp/stage-a1B2c3");
    fs::create_dir_all(dead.join("content")).unwrap();
    fs::write(dead.join("lock"), "").unwrap();
    let live = cache.stage().unwrap();
    DataCache::open(dir.path()).unwrap();
    assert!(!dead.exists());
    assert!(live.content.exists());
}

#[test]
fn entries_in_use_or_being_built_are_not_evicted() {
    let dir = tempfile::tempdir().unwrap();
    let cache = DataCache::open(dir.path()).unwrap();
    let use_it = || {
        let user = DataCache::open(dir.path()).unwrap();
        user.open_or_build(KIND, &key(), &|_| (), &read, &mut |p| write(p, "one")).unwrap();
        user.take_locks("data")
    };
    let (first, second) = (use_it(), use_it());
    assert_eq!((first.len(), cache.evict(KIND, &key()).unwrap()), (1, false));
    drop(first);
    assert!(!cache.evict(KIND, &key()).unwrap(), "two use it");
    drop(second);
    let building = cache.lock(KIND, &key(), &|_| ()).unwrap();
    assert!(!cache.evict(KIND, &key()).unwrap());
    drop(building);
    assert!(cache.evict(KIND, &key()).unwrap());
    assert!(!cache.path(KIND, &key()).exists());
    assert_eq!(fs::read_dir(dir.path().join("tmp")).unwrap().count(), 1, "only the lock file");
    let note = fs::read_to_string(dir.path().join(USES).join("data.json")).unwrap();
    assert_eq!(note, format!("[\"tokens/{}\"]", key()));
}

#[test]
fn many_builders_agree() {
    let dir = tempfile::tempdir().unwrap();
    let builds = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let cache = DataCache::open(dir.path()).unwrap();
                let mut build = |p: &Path| {
                    builds.fetch_add(1, Ordering::Relaxed);
                    std::thread::sleep(Duration::from_millis(20));
                    write(p, "tokens.bin")
                };
                assert_eq!(cache.open_or_build(KIND, &key(), &|_| (), &read, &mut build).unwrap().0, "tokens.bin");
            });
        }
    });
    assert_eq!(builds.load(Ordering::Relaxed), 1);
}

#[test]
#[cfg(target_os = "linux")]
fn a_damaged_entry_of_a_read_only_cache_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let reports = Mutex::new(Vec::new());
    let get = |is_writable: bool| {
        let cache = DataCache::open(dir.path()).unwrap();
        let locks = dir.path().join(LOCKS);
        let _ = fs::remove_file(&locks);
        if !is_writable {
            // Not even root creates a file there.
            let _ = fs::remove_dir_all(&locks);
            std::os::unix::fs::symlink("/sys", &locks).unwrap();
        }
        let open = |path: &Path| fs::read_to_string(path.join("tokenizer.json")).map_err(DataError::io(path));
        let mut build = |path: &Path| fs::write(path.join("tokenizer.json"), "new").map_err(DataError::io(path));
        let report = |progress| reports.lock().unwrap().push(progress);
        let got = cache.open_or_build(EntryKind::Tokenizers, &key(), &report, &open, &mut build);
        (got.map_err(|error| error.to_string()), std::mem::take(&mut *reports.lock().unwrap()))
    };
    assert_eq!(get(true), (Ok(("new".to_owned(), false)), vec![]));
    assert_eq!(get(false), (Ok(("new".to_owned(), true)), vec![]));
    fs::write(dir.path().join("tokenizers").join(key()).join("tokenizer.json"), "odd").unwrap();
    let (got, reported) = get(false);
    let text = got.unwrap_err();
    assert!(text.contains("tokenizer.json does not match its hash; it cannot be rebuilt: "), "{text}");
    assert!(text.contains("set RUNNER_CACHE to a writable folder") && reported.is_empty(), "{text}");
    assert_eq!(get(true), (Ok(("new".to_owned(), false)), vec![Progress::Repairing("a tokenizer")]));
}
