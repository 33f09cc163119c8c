//! The format of the files of a split, by their endings.

use super::error::quoted;
use super::refusal::Refusal;
use runner_spec::diagnostic::list;
use runner_spec::experiment::{FILE_FORMATS, FileFormat};

/// Endings of files with JSON. The reader of the first, arrays, also reads lines.
const JSON: [&str; 3] = ["json", "jsonl", "ndjson"];
/// Endings of text that `datasets` does not read as text.
const IGNORED: [&str; 2] = ["md", "text"];
/// Endings of other files that `datasets` reads as data, or decompresses. A split that has one is not read here.
const OTHER: &str = "geoparquet gpq arrow conll conllu tar xml hdf5 h5 eval toml lance idx txn manifest tsfile vortex fa fasta fna ffn \
     faa frn afa gb gbk genbank fq fastq pdb ent cif mmcif blp bmp dib bufr cur pcx dcx dds ps eps fit fits fli flc ftc ftu gbr gif \
     grib png apng jp2 j2k jpc jpf jpx j2c icns ico im iim tif tiff jfif jpe jpg jpeg msp pcd pxr pbm pgm ppm pnm psd bw rgb rgba \
     sgi ras tga icb vda vst webp wmf emf xbm xpm mpg aiff au avr caf flac htk svx mat4 mat5 mpc2k ogg paf pvf raw rf64 sd2 sds \
     ircam voc w64 wav nist wavex wve xi mp3 opus 3gp 3g2 asf flv m4v webm f4v wmv wma ogm mxf nut mpeg avi mp4 mov mkv glb gltf \
     ply stl pdf nii zip gz bz2 xz zst lz4 lzma br z 7z rar tgz";
/// Files that a message names.
const NAMED_FILES: usize = 3;

/// The last part of a path.
pub(super) fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// What follows each point in the name of a file.
fn endings(path: &str) -> Vec<&str> {
    file_name(path).split('.').skip(1).collect()
}

/// True if `datasets` looks at a file of this name.
pub(super) fn is_data(path: &str) -> bool {
    endings(path).into_iter().any(|ending| read_format(ending).is_some() || is_other(ending))
}

/// The format of files with `ending`, if they are read here and `datasets` reads them in the same way.
fn read_format(ending: &str) -> Option<&'static FileFormat> {
    FileFormat::of_ending(ending).filter(|_| !IGNORED.contains(&ending))
}

fn is_other(ending: &str) -> bool {
    OTHER.split_whitespace().any(|other| other == ending.to_lowercase())
}

/// The format of a file that is read here.
fn format_of(path: &str) -> Option<&'static FileFormat> {
    let endings = endings(path);
    let last = endings.last()?;
    let is_plain = endings.iter().all(|other| other == last || read_format(other).is_none() && !is_other(other));
    read_format(last).filter(|_| is_plain)
}

/// The one format of the files of `split`.
///
/// # Errors
/// If there are several formats, or others than those that are read here.
pub(super) fn common_format(split: &str, files: &[String]) -> Result<&'static FileFormat, Refusal> {
    let refuse = |what: String| Err(Refusal::unreadable(format!("split `{}` has {what}", quoted(split))));
    let (mut formats, mut unread) = (Vec::new(), Vec::new());
    for file in files {
        match format_of(file) {
            Some(format) if !formats.contains(&format) => formats.push(format),
            Some(_) => {}
            None => unread.push(file),
        }
    }
    if !unread.is_empty() {
        let read = FILE_FORMATS.iter().flat_map(|format| format.endings).filter(|ending| !IGNORED.contains(ending));
        let read = list(&read.map(|ending| format!(".{ending}")).collect::<Vec<_>>(), "and");
        return refuse(format!("{}; only {read} files are read, not compressed", name_files(&unread)));
    }
    let is_json = |format: &&FileFormat| format.endings.iter().any(|ending| JSON.contains(ending));
    match (formats.as_slice(), FileFormat::of_ending(JSON[0])) {
        ([one], _) => Ok(one),
        ([first, second, others @ ..], Some(arrays)) => {
            if is_json(first) && is_json(second) && others.is_empty() {
                return Ok(arrays);
            }
            refuse(format!("files of {} and of {}", first.name, second.name))
        }
        _ => refuse("no data files".to_owned()),
    }
}

/// The first of `files`, and the number of the others.
fn name_files(files: &[&String]) -> String {
    let named: Vec<String> = files.iter().take(NAMED_FILES).map(|file| format!("`{}`", quoted(file))).collect();
    match files.len() - named.len() {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}
