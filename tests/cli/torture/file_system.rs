//! A model of a file system: what it holds, and what of that survives a loss of power.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::Path;

use super::injector::Call;

/// The changes that survive although they were not synced. Systems may keep others too; these are the extremes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Survival {
    /// Every change of names, and the contents of files at their last sync.
    Names,
    /// The same, and the sizes of files: bytes that were not synced are zero.
    NamesAndSizes,
    /// Nothing: contents and names have the state of the last sync.
    Nothing,
}

impl Survival {
    pub const ALL: [Self; 3] = [Self::Names, Self::NamesAndSizes, Self::Nothing];
}

type Entries = BTreeMap<OsString, usize>;

#[derive(Debug, Clone)]
enum Node {
    File { contents: Vec<u8>, synced: Vec<u8> },
    Folder { entries: Entries, synced: Entries },
}

/// Files and folders by number; 0 is the root.
#[derive(Debug, Clone)]
pub struct FileSystem(Vec<Node>);

impl FileSystem {
    /// A file system that holds `folder`, all of it synced.
    pub fn holding(folder: &Path) -> Self {
        let mut new = Self(Vec::new());
        new.add_folder(folder);
        new
    }

    fn add_folder(&mut self, folder: &Path) -> usize {
        let number = self.add(Node::Folder { entries: Entries::new(), synced: Entries::new() });
        for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let child = if entry.file_type().unwrap().is_dir() {
                self.add_folder(&entry.path())
            } else {
                let contents = fs::read(entry.path()).unwrap();
                self.add(Node::File { synced: contents.clone(), contents })
            };
            self.entries(number).insert(entry.file_name(), child);
        }
        self.sync(number);
        number
    }

    fn add(&mut self, node: Node) -> usize {
        self.0.push(node);
        self.0.len() - 1
    }

    fn entries(&mut self, folder: usize) -> &mut Entries {
        match &mut self.0[folder] {
            Node::Folder { entries, .. } => entries,
            Node::File { .. } => panic!("{folder} is a file"),
        }
    }

    fn sync(&mut self, number: usize) {
        match &mut self.0[number] {
            Node::File { contents, synced } => synced.clone_from(contents),
            Node::Folder { entries, synced } => synced.clone_from(entries),
        }
    }

    /// The file or folder at `path` now; `None` if it was removed.
    fn find(&self, path: &Path) -> Option<usize> {
        path.components().try_fold(0, |folder, name| match &self.0[folder] {
            Node::Folder { entries, .. } => entries.get(name.as_os_str()).copied(),
            Node::File { .. } => None,
        })
    }

    /// The names in the folder at `path` now, in order.
    pub fn names_in(&self, path: &Path) -> Vec<String> {
        match self.find(path).map(|number| &self.0[number]) {
            Some(Node::Folder { entries, .. }) => entries.keys().map(|name| name.to_string_lossy().into()).collect(),
            _ => panic!("no folder {}", path.display()),
        }
    }

    /// The entries of the folder that holds `path`, and the name of `path` in it.
    fn place(&mut self, path: &Path) -> (&mut Entries, OsString) {
        let folder = self.find(path.parent().unwrap()).unwrap_or_else(|| panic!("no folder of {}", path.display()));
        (self.entries(folder), path.file_name().unwrap().to_owned())
    }

    fn put(&mut self, path: &Path, number: usize) {
        let (entries, name) = self.place(path);
        entries.insert(name, number);
    }

    fn remove(&mut self, path: &Path) -> usize {
        let (entries, name) = self.place(path);
        entries.remove(&name).unwrap_or_else(|| panic!("no {}", path.display()))
    }

    pub fn apply(&mut self, call: &Call) {
        match call.operation.as_str() {
            "none" | "times" => {}
            "create" => {
                let file = self.add(Node::File { contents: Vec::new(), synced: Vec::new() });
                self.put(&call.path, file);
            }
            "mkdir" => {
                let folder = self.add(Node::Folder { entries: Entries::new(), synced: Entries::new() });
                self.put(&call.path, folder);
            }
            "remove" => drop(self.remove(&call.path)),
            "rename" => {
                let number = self.remove(&call.path);
                self.put(&call.second, number);
            }
            "link" => self.put(&call.second, self.find(&call.path).unwrap()),
            // A file that was removed while it was open has no path.
            "sync" => drop(self.find(&call.path).map(|number| self.sync(number))),
            "write" | "truncate" => {
                if let Some(Node::File { contents, .. }) = self.find(&call.path).map(|number| &mut self.0[number]) {
                    let end = call.offset + call.data.len();
                    contents.resize(if call.operation == "write" { contents.len().max(end) } else { end }, 0);
                    contents[call.offset..end].copy_from_slice(&call.data);
                }
            }
            other => panic!("the model knows no {other}"),
        }
    }

    /// Writes what a loss of power leaves into the folder `to`, which exists.
    pub fn write_image(&self, survival: Survival, to: &Path) {
        self.write_folder(0, survival, to);
    }

    fn write_folder(&self, folder: usize, survival: Survival, to: &Path) {
        let Node::Folder { entries, synced } = &self.0[folder] else { panic!("{folder} is a file") };
        for (name, &number) in if survival == Survival::Nothing { synced } else { entries } {
            let path = to.join(name);
            match &self.0[number] {
                Node::Folder { .. } => {
                    fs::create_dir_all(&path).unwrap();
                    self.write_folder(number, survival, &path);
                }
                Node::File { contents, synced } => {
                    let mut bytes = synced.clone();
                    if survival == Survival::NamesAndSizes {
                        bytes.resize(contents.len(), 0);
                    }
                    fs::write(&path, bytes).unwrap();
                }
            }
        }
    }
}
