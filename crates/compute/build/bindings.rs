//! What Rust knows of the kernels, read from their sources after preprocessing: the parameters of each, and where to find it.
//!
//! A kernel's name has the name of its family, the type of its tensors, and its variant: `norm_bf16_layer_warp`. The kernels of a family have
//! the same parameters, for which `kernels.rs` has a struct with their names and types. An address whose type differs from kernel to kernel
//! has the type `Elements`. A parameter may be a struct of numbers, which `kernels.rs` then has, too.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Context as _, Result, bail};

/// The types by which a family's name ends.
const TYPES: [&str; 4] = ["f32", "bf16", "f64", "tf32"];

/// Types and names.
type Fields = Vec<(String, String)>;

/// A kernel as its source declares it.
#[derive(Debug)]
struct Kernel {
    name: String,
    parameters: Fields,
}

/// What an image has.
#[derive(Debug)]
pub(crate) struct Image {
    kernels: Vec<Kernel>,
    /// The structs among the kernels' parameters.
    structs: BTreeMap<String, Fields>,
}

impl Image {
    /// From the source after preprocessing.
    pub(crate) fn new(source: &str) -> Result<Self> {
        let lines: Vec<&str> = source.lines().filter(|line| !line.starts_with('#')).collect();
        let text = lines.join(" ");
        let kernels: Vec<Kernel> =
            text.split("extern \"C\" __attribute__((global))").skip(1).map(kernel).collect::<Result<_>>()?;
        let kinds = kernels.iter().flat_map(|kernel| &kernel.parameters).map(|(kind, _)| kind);
        let structs = kinds.filter_map(|kind| Some((kind.clone(), fields_of_struct(&text, kind)?))).collect();
        Ok(Self { kernels, structs })
    }

    pub(crate) fn number_of_kernels(&self) -> usize {
        self.kernels.len()
    }
}

/// The fields of a struct of numbers, `struct kind { type name, name; type name[3]; };`. `None` if the text has none.
fn fields_of_struct(text: &str, kind: &str) -> Option<Fields> {
    let (_, after) = text.split_once(&format!("struct {kind} {{"))?;
    let mut fields = Vec::new();
    for line in after.split('}').next()?.split(';').map(str::trim).filter(|line| !line.is_empty()) {
        let (kind, names) = line.split_once(' ')?;
        for name in names.split(',').map(str::trim) {
            fields.push(match name.split_once('[') {
                Some((name, length)) => (format!("{kind}[{length}"), name.to_owned()),
                None => (kind.to_owned(), name.to_owned()),
            });
        }
    }
    Some(fields)
}

/// From what follows the attribute: ` void __attribute__((…)) name(type name, …) { …`.
fn kernel(text: &str) -> Result<Kernel> {
    let (head, _) = text.split_once('{').context("a kernel without a body")?;
    let declared = || {
        let (before, parameters) = head[..head.rfind(')')?].rsplit_once('(')?;
        let name = before.split_whitespace().last()?;
        let parameters = parameters.split(',').map(|parameter| {
            let parameter = parameter.trim();
            let at = parameter.rfind(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))? + 1;
            let (kind, name) = parameter.split_at_checked(at)?;
            let kind = kind.trim_start_matches("const ").replace(' ', "");
            Some((kind, name.to_owned()))
        });
        Some(Kernel { name: name.to_owned(), parameters: parameters.collect::<Option<_>>()? })
    };
    declared().with_context(|| format!("a kernel's declaration is not understood: {head}"))
}

/// A family's parameters, and its kernels: what their names have after the family's, and the numbers of their images.
#[derive(Debug, Default)]
struct Family {
    parameters: Fields,
    kernels: Vec<(String, usize)>,
}

/// The text of `kernels.rs`.
pub(crate) fn source(images: &[Image]) -> Result<String> {
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let mut structs: BTreeMap<&String, &Fields> = BTreeMap::new();
    for (name, fields) in images.iter().flat_map(|image| &image.structs) {
        if structs.insert(name, fields).is_some_and(|other| other != fields) {
            bail!("the sources have different structs {name}")
        }
    }
    for (image, Image { kernels, .. }) in images.iter().enumerate() {
        for kernel in kernels {
            let (name, rest) = split(&kernel.name);
            let family = families.entry(name).or_default();
            if family.kernels.is_empty() {
                family.parameters.clone_from(&kernel.parameters);
            }
            merge(&mut family.parameters, kernel)?;
            family.kernels.push((rest, image));
        }
    }
    let (mut text, mut number) = (String::new(), 0);
    for (name, fields) in &structs {
        let about = format!("`{name}` of the kernels' sources.\n#[derive(Clone, Copy)]\n#[repr(C)]");
        write_struct(&mut text, &about, name, fields, &structs)?;
    }
    for (name, family) in &families {
        let (kind, fields): (String, _) = (name.split('_').map(capitalized).collect(), &family.parameters);
        write_struct(&mut text, &format!("Parameters of the kernels `{name}`."), &kind, fields, &structs)?;
        writeln!(text, "impl Parameters for {kind} {{\n    const KERNELS: &'static [Kernel] = &[")?;
        for (rest, image) in &family.kernels {
            writeln!(text, "        Kernel {{ family: {name:?}, rest: {rest:?}, image: {image}, number: {number} }},")?;
            number += 1;
        }
        writeln!(text, "    ];\n\n    fn addresses(&self) -> impl AsMut<[*mut c_void]> {{\n        [")?;
        for (_, field) in fields {
            writeln!(text, "            ptr::from_ref(&self.{field}).cast_mut().cast(),")?;
        }
        writeln!(text, "        ]\n    }}\n}}\n")?;
    }
    Ok(text)
}

fn write_struct(
    text: &mut String,
    about: &str,
    name: &str,
    fields: &Fields,
    structs: &BTreeMap<&String, &Fields>,
) -> Result<()> {
    writeln!(text, "/// {about}\n#[derive(Debug)]\npub(super) struct {name} {{")?;
    for (kind, field) in fields {
        let kind = if structs.contains_key(kind) { kind.clone() } else { rust_type(kind).context(name.to_owned())? };
        writeln!(text, "    pub(super) {field}: {kind},")?;
    }
    Ok(writeln!(text, "}}\n")?)
}

/// The family's name, and the rest, which starts with the type.
fn split(name: &str) -> (String, String) {
    let words: Vec<&str> = name.split('_').collect();
    let at = words.iter().position(|word| TYPES.contains(word)).unwrap_or(words.len());
    (words[..at].join("_"), words[at..].join("_"))
}

/// Addresses of different types become `Elements`; all else must be the same.
fn merge(parameters: &mut Fields, kernel: &Kernel) -> Result<()> {
    if parameters.len() != kernel.parameters.len() {
        bail!("{} has {} parameters, others of its family {}", kernel.name, kernel.parameters.len(), parameters.len())
    }
    for ((kind, name), (other, same)) in parameters.iter_mut().zip(&kernel.parameters) {
        if name != same {
            bail!("{}: its parameter {same} is {name} in others of its family", kernel.name)
        }
        if kind == other {
            continue;
        }
        if !(kind.ends_with('*') && other.ends_with('*')) {
            bail!("{}: {name} is {other}, and {kind} in others of its family", kernel.name)
        }
        "Elements*".clone_into(kind);
    }
    Ok(())
}

fn rust_type(kind: &str) -> Result<String> {
    if let Some((of, length)) = kind.strip_suffix(']').and_then(|kind| kind.split_once('[')) {
        return Ok(format!("[{}; {length}]", rust_type(of)?));
    }
    let kind = match kind {
        "Elements*" => "Elements",
        "float*" => "Array<f32>",
        "bf16*" => "Array<bf16>",
        "double*" => "Array<f64>",
        "unsigned*" => "Array<u32>",
        "int" => "i32",
        "i64" => "i64",
        "unsigned" => "u32",
        "u64" => "u64",
        "float" => "f32",
        other => bail!("parameters of the unknown type {other}"),
    };
    Ok(kind.to_owned())
}

fn capitalized(word: &str) -> String {
    let (first, rest) = word.split_at(word.len().min(1));
    first.to_uppercase() + rest
}
