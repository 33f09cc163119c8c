//! The format of files, which `datasets` finds by counting their endings.

use std::collections::BTreeMap;

use runner_spec::diagnostic::list;
use runner_spec::experiment::FileFormat;

/// The readers of `datasets`, and the endings of their files. A reader with other settings counts as another reader.
const READERS: [(&str, &str); 28] = [
    ("csv", "csv"),
    ("csv with tabs", "tsv"),
    ("json", "json jsonl ndjson"),
    ("parquet", "parquet geoparquet gpq"),
    ("arrow", "arrow"),
    ("text", "txt"),
    ("conll", "conll"),
    ("conllu", "conllu"),
    ("webdataset", "tar"),
    ("xml", "xml"),
    ("hdf5", "hdf5 h5"),
    ("eval", "eval"),
    ("harbor", "toml md"),
    ("lance", "lance"),
    ("tsfile", "tsfile"),
    ("vortex", "vortex"),
    ("fasta", "fa fasta fna ffn faa frn afa"),
    ("genbank", "gb gbk genbank"),
    ("fastq", "fq fastq"),
    ("pdb", "pdb ent"),
    ("mmcif", "cif mmcif"),
    (
        "imagefolder",
        "blp bmp dib bufr cur pcx dcx dds ps eps fit fits fli flc ftc ftu gbr gif grib png apng jp2 j2k jpc jpf jpx j2c icns ico im \
         iim tif tiff jfif jpe jpg jpeg msp pcd pxr pbm pgm ppm pnm psd bw rgb rgba sgi ras tga icb vda vst webp wmf emf xbm xpm",
    ),
    (
        "audiofolder",
        "mpg aiff au avr caf flac htk svx mat4 mat5 mpc2k ogg paf pvf raw rf64 sd2 sds ircam voc w64 wav nist wavex wve xi mp3 opus \
         3gp 3g2 asf flv m4v webm f4v wmv wma ogm mxf nut",
    ),
    ("videofolder", "mpeg avi mp4 mov mkv"),
    ("meshfolder", "glb gltf ply stl"),
    ("pdffolder", "pdf"),
    ("niftifolder", "nii"),
    ("zip", "zip"),
];
/// Readers whose endings may be in capitals.
const IN_CAPITALS: [&str; 7] =
    ["pdb", "imagefolder", "audiofolder", "videofolder", "meshfolder", "pdffolder", "niftifolder"];
/// Endings of files that are read with others.
const COMPANIONS: [&str; 3] = ["idx", "txn", "manifest"];
/// Names of files that describe others. Their endings count only where there are no others.
const METADATA: [&str; 6] =
    ["instruction.md", "latest_version_hint.json", "metadata.csv", "metadata.jsonl", "metadata.parquet", "task.toml"];
/// In a draw, the first of these is the format, and then the last in the alphabet.
const PREFERRED: [&str; 7] = ["parquet", "lance", "vortex", "arrow", "jsonl", "json", "csv"];
/// Endings of compressed files and archives.
const COMPRESSED: [&str; 13] = ["gz", "bz2", "xz", "zst", "lz4", "lzma", "br", "z", "zip", "7z", "rar", "tar", "tgz"];

/// The format of `files` that the reader `reader` of `datasets` reads; `None` if it is not read here. It is the format whose endings all
/// the files have, or else that of the reader's first ending.
pub(super) fn format_of(reader: &str, files: &[String]) -> Option<&'static FileFormat> {
    let (_, endings) = READERS.iter().find(|(name, _)| *name == reader)?;
    let mut formats = endings.split(' ').map(FileFormat::of_ending);
    let usual = formats.next()??;
    let names_all = |format: &&FileFormat| {
        files.iter().all(|file| file.rsplit_once('.').is_some_and(|(_, ending)| format.endings.contains(&ending)))
    };
    Some(formats.flatten().find(names_all).unwrap_or(usual))
}

/// The readers of `datasets` whose files are read here, for a message.
pub(super) fn readable(last: &str) -> String {
    let names: Vec<&str> =
        READERS.iter().map(|(name, _)| *name).filter(|name| format_of(name, &[]).is_some()).collect();
    list(&names, last)
}

/// The last part of a path.
pub(super) fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// What follows each point in the name of a file.
fn endings(path: &str) -> impl Iterator<Item = &str> {
    file_name(path).split('.').skip(1)
}

/// The reader of files with `ending`.
fn reader_of(ending: &str) -> Option<&'static str> {
    let has = |(_, endings): &&(&str, &str)| endings.split(' ').any(|other| other == ending);
    READERS.iter().find(has).map(|(reader, _)| *reader)
}

/// True if the files of a reader may have `ending`, spelled like this.
fn is_allowed(ending: &str) -> bool {
    let spelled = |ending: &str| reader_of(ending).or_else(|| COMPANIONS.contains(&ending).then_some("lance"));
    let is_capital = !ending.contains(|c: char| c.is_ascii_lowercase());
    spelled(ending).is_some()
        || is_capital && spelled(&ending.to_ascii_lowercase()).is_some_and(|reader| IN_CAPITALS.contains(&reader))
}

/// True if `datasets` looks at a file of this name at all.
pub(super) fn is_data(path: &str) -> bool {
    endings(path).any(is_allowed)
}

/// The reader of most `files`; `None` if there is none.
pub(super) fn infer_reader(files: &[String]) -> Option<&'static str> {
    let mut counts: BTreeMap<(bool, String), usize> = BTreeMap::new();
    for path in files {
        for ending in endings(path) {
            *counts.entry((!METADATA.contains(&file_name(path)), ending.to_lowercase())).or_default() += 1;
        }
    }
    let rank = |ending: &str| PREFERRED.iter().rev().position(|other| *other == ending).map_or(0, |at| at + 1);
    let readable = counts.iter().filter_map(|((is_content, ending), &count)| {
        Some(((*is_content, count, rank(ending), ending.as_str()), reader_of(ending)?))
    });
    readable.max().map(|(_, reader)| reader)
}

/// True if the file is one of the reader's, by any of its endings.
pub(super) fn is_of_reader(path: &str, reader: &str) -> bool {
    endings(path).any(|ending| reader_of(ending) == Some(reader))
}

/// True if `datasets` keeps the file when it drops the files of other readers.
pub(super) fn is_kept(path: &str, reader: &str) -> bool {
    let endings = READERS.iter().filter(|(name, _)| [reader, "zip"].contains(name));
    endings.flat_map(|(_, endings)| endings.split(' ')).any(|ending| {
        // What follows may lie in a folder: `x.json.d/a.txt` is kept as JSON.
        let dotted = format!(".{ending}");
        path.match_indices(&dotted).any(|(at, _)| {
            let rest = &path[at + dotted.len()..];
            rest.is_empty() || rest.len() > 1 && rest.starts_with('.')
        })
    })
}

/// True for the names of compressed files and archives.
pub(super) fn is_compressed(path: &str) -> bool {
    endings(path).last().is_some_and(|ending| COMPRESSED.contains(&ending.to_lowercase().as_str()))
}
