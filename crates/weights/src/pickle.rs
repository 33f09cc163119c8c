//! A strict reader of the pickles that `torch.save` writes. It executes nothing: a pickle becomes numbers, texts, lists, dicts and
//! tensors, and a name of anything else in Python ends the reading.

use std::collections::{HashMap, HashSet};

/// The number of values that a pickle may have. A state dict takes some twenty for each tensor.
const MAX_VALUES: usize = 1 << 22;
/// The last protocol that is read.
const MAX_PROTOCOL: u64 = 5;
/// The number of dimensions that a tensor may have. Tensors may share their shapes, and each gets a copy.
const MAX_RANK: usize = 8;
/// The number of bytes that the name of a tensor, a storage or a class may have. Tensors may share them, too.
pub(super) const MAX_NAME_BYTES: usize = 1000;

/// The place of a value in its pickle.
pub(super) type ValueId = usize;

/// A value. Texts are part of the pickle's bytes.
#[derive(Debug)]
enum Value<'a> {
    /// None, a truth value, a float, bytes: nothing that a state dict consists of.
    Other,
    Int(i64),
    Text(&'a str),
    /// A list or a tuple.
    Sequence(Vec<ValueId>),
    Dict(Vec<(ValueId, ValueId)>),
    Global(Global<'a>),
    /// What the pickle says of a storage: a tuple.
    Storage(ValueId),
    /// The arguments of a tensor: a tuple.
    Tensor(ValueId),
}

/// A name in Python that a state dict needs.
#[derive(Debug, Clone, Copy)]
enum Global<'a> {
    OrderedDict,
    RebuildTensor,
    RebuildParameter,
    /// The class of a storage, such as `FloatStorage`.
    StorageClass(&'a str),
}

/// A tensor as the pickle describes it. Nothing of it is checked against the data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PickledTensor<'a> {
    /// The class of its storage, such as `FloatStorage`.
    pub(super) storage_class: &'a str,
    /// The name of its storage in the file.
    pub(super) storage: &'a str,
    /// Elements of the storage before the tensor's first.
    pub(super) offset: u64,
    pub(super) shape: Vec<usize>,
    /// Elements from one index to the next, by dimension.
    pub(super) strides: Vec<usize>,
    /// A flag of a view that is computed when it is read: `neg` or `conj`.
    pub(super) flag: Option<&'a str>,
}

/// A pickle that was read.
#[derive(Debug)]
pub(super) struct Pickle<'a> {
    values: Vec<Value<'a>>,
    pub(super) root: ValueId,
}

impl<'a> Pickle<'a> {
    /// Reads the pickle `bytes`. The memory needed is proportional to them.
    ///
    /// # Errors
    /// A name or an instruction that a state dict does not need, or bytes that are not a pickle.
    pub(super) fn read(bytes: &'a [u8]) -> Result<Self, String> {
        let (mut values, mut stack) = (Vec::new(), Stack::default());
        let mut input = Input(bytes);
        let root = loop {
            if values.len().max(stack.memo.len()) > MAX_VALUES {
                return Err(format!("its pickle has more than {MAX_VALUES} values"));
            }
            let at = bytes.len() - input.0.len();
            let step = read_step(&mut input, &mut values, &mut stack);
            if let Some(root) = step.map_err(|message| format!("{message} (byte {at} of its pickle)"))? {
                break root;
            }
        };
        Ok(Self { values, root })
    }

    /// The entries of a dict whose keys are texts, in order; `None` for any other value.
    ///
    /// # Errors
    /// A key that occurs twice. Python writes none, and would use the last value.
    pub(super) fn entries(&self, id: ValueId) -> Result<Option<Vec<(&'a str, ValueId)>>, String> {
        let Value::Dict(pairs) = &self.values[id] else { return Ok(None) };
        let (mut entries, mut seen) = (Vec::new(), HashSet::new());
        for (key, value) in pairs {
            let Some(key) = self.text(*key) else { return Ok(None) };
            if !seen.insert(key) {
                return Err(format!("the key `{}` occurs twice", shown(key)));
            }
            entries.push((key, *value));
        }
        Ok(Some(entries))
    }

    /// The whole number `id`.
    pub(super) fn int(&self, id: ValueId) -> Option<i64> {
        if let Value::Int(number) = self.values[id] { Some(number) } else { None }
    }

    /// True if `id` is a tensor.
    pub(super) fn is_tensor(&self, id: ValueId) -> bool {
        matches!(self.values[id], Value::Tensor(_))
    }

    /// The tensor `id`; `None` if it is none, or its numbers cannot be those of a tensor.
    pub(super) fn tensor(&self, id: ValueId) -> Option<PickledTensor<'a>> {
        let Value::Tensor(arguments) = self.values[id] else { return None };
        let &[storage, offset, shape, strides, ref others @ ..] = self.sequence(arguments)? else { return None };
        let Value::Storage(storage) = self.values[storage] else { return None };
        let &[tag, class, key, ..] = self.sequence(storage)? else { return None };
        if self.text(tag)? != "storage" {
            return None;
        }
        let Value::Global(Global::StorageClass(class)) = self.values[class] else { return None };
        let sizes = |id| {
            let sizes = self.sequence(id).filter(|sizes| sizes.len() <= MAX_RANK)?;
            sizes.iter().map(|id| usize::try_from(self.int(*id)?).ok()).collect::<Option<_>>()
        };
        Some(PickledTensor {
            storage_class: class,
            storage: self.text(key).filter(|key| key.len() <= MAX_NAME_BYTES)?,
            offset: u64::try_from(self.int(offset)?).ok()?,
            shape: sizes(shape)?,
            strides: sizes(strides)?,
            flag: others.get(2).and_then(|metadata| self.first_flag(*metadata)),
        })
    }

    /// The first key of `id`, the metadata of a tensor, which follow `requires_grad` and the hooks of its gradient.
    fn first_flag(&self, id: ValueId) -> Option<&'a str> {
        const UNKNOWN: &str = "unknown";
        match &self.values[id] {
            Value::Dict(entries) => entries.first().map(|(name, _)| self.text(*name).unwrap_or(UNKNOWN)),
            Value::Other => None,
            _ => Some(UNKNOWN),
        }
    }

    fn text(&self, id: ValueId) -> Option<&'a str> {
        if let Value::Text(text) = self.values[id] { Some(text) } else { None }
    }

    fn sequence(&self, id: ValueId) -> Option<&[ValueId]> {
        if let Value::Sequence(items) = &self.values[id] { Some(items) } else { None }
    }
}

/// The bytes that are left.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn take(&mut self, count: u64) -> Result<&'a [u8], String> {
        let parts = usize::try_from(count).ok().and_then(|count| self.0.split_at_checked(count));
        let (taken, rest) = parts.ok_or("the pickle is cut short")?;
        self.0 = rest;
        Ok(taken)
    }

    /// The unsigned little-endian number of the next `width` bytes, at most eight.
    fn unsigned(&mut self, width: u64) -> Result<u64, String> {
        Ok(self.take(width)?.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    /// The text after its length, a number of `width` bytes.
    fn text(&mut self, width: u64) -> Result<&'a str, String> {
        let length = self.unsigned(width)?;
        std::str::from_utf8(self.take(length)?).map_err(|_| "a text is not UTF-8".to_owned())
    }

    fn line(&mut self) -> Result<&'a str, String> {
        let end = self.0.iter().position(|byte| *byte == b'\n').ok_or("the pickle is cut short")?;
        let line = self.take(end as u64 + 1)?;
        std::str::from_utf8(&line[..end]).map_err(|_| "a name is not UTF-8".to_owned())
    }
}

/// The stack of the pickle machine, with the marks on it, and its memo.
#[derive(Default)]
struct Stack {
    values: Vec<ValueId>,
    /// The heights of the stack at which marks are.
    marks: Vec<usize>,
    memo: HashMap<u64, ValueId>,
}

impl Stack {
    fn top(&self) -> Result<ValueId, String> {
        let floor = self.marks.last().copied().unwrap_or(0);
        self.values[floor..].last().copied().ok_or_else(|| "a value is missing".to_owned())
    }

    fn pop(&mut self) -> Result<ValueId, String> {
        let top = self.top()?;
        self.values.pop();
        Ok(top)
    }

    /// The values above the last mark, which is removed.
    fn pop_to_mark(&mut self) -> Result<Vec<ValueId>, String> {
        let mark = self.marks.pop().ok_or("a mark is missing")?;
        Ok(self.values.split_off(mark))
    }

    fn pop_last(&mut self, count: usize) -> Result<Vec<ValueId>, String> {
        let mut items = (0..count).map(|_| self.pop()).collect::<Result<Vec<_>, _>>()?;
        items.reverse();
        Ok(items)
    }
}

/// Follows one instruction of the pickle. Returns the value of the pickle after the last one.
fn read_step<'a>(
    input: &mut Input<'a>,
    values: &mut Vec<Value<'a>>,
    stack: &mut Stack,
) -> Result<Option<ValueId>, String> {
    let opcode = input.unsigned(1)? as u8;
    let value = match opcode {
        b'.' => return stack.pop().map(Some),
        0x80 => {
            let protocol = input.unsigned(1)?;
            return if protocol > MAX_PROTOCOL {
                Err(format!("unsupported pickle protocol {protocol}"))
            } else {
                Ok(None)
            };
        }
        // The length of a frame, which is not needed.
        0x95 => return input.take(8).map(|_| None),
        b'(' => {
            stack.marks.push(stack.values.len());
            return Ok(None);
        }
        b'q' | b'r' | 0x94 => {
            let key = if opcode == 0x94 { stack.memo.len() as u64 } else { input.unsigned(index_width(opcode))? };
            stack.memo.insert(key, stack.top()?);
            return Ok(None);
        }
        b'h' | b'j' => {
            let key = input.unsigned(index_width(opcode))?;
            stack.values.push(*stack.memo.get(&key).ok_or("an unknown index of the memo")?);
            return Ok(None);
        }
        b'a' | b'e' => {
            let items = if opcode == b'a' { vec![stack.pop()?] } else { stack.pop_to_mark()? };
            let Value::Sequence(list) = &mut values[stack.top()?] else { return Err("not a list".to_owned()) };
            list.extend(items);
            return Ok(None);
        }
        b's' | b'u' => {
            let items = if opcode == b's' { stack.pop_last(2)? } else { stack.pop_to_mark()? };
            let Value::Dict(entries) = &mut values[stack.top()?] else { return Err("not a dict".to_owned()) };
            entries.extend(items.as_chunks().0.iter().map(|[key, value]| (*key, *value)));
            return Ok(None);
        }
        // The attributes of a dict, `_metadata` of a state dict.
        b'b' => {
            stack.pop()?;
            return match values[stack.top()?] {
                Value::Dict(_) => Ok(None),
                _ => Err("attributes of something that is not a dict".to_owned()),
            };
        }
        b'R' => {
            let made = call(values, stack)?;
            stack.values.push(made);
            return Ok(None);
        }
        b'c' => {
            let (module, name) = (input.line()?, input.line()?);
            Value::Global(global(module, name)?)
        }
        0x93 => match stack.pop_last(2)?.as_slice() {
            &[module, name] => match (&values[module], &values[name]) {
                (Value::Text(module), Value::Text(name)) => Value::Global(global(module, name)?),
                _ => return Err("a name that is not a text".to_owned()),
            },
            _ => return Err("a value is missing".to_owned()),
        },
        _ => read_value(opcode, input, stack)?,
    };
    stack.values.push(values.len());
    values.push(value);
    Ok(None)
}

/// The value that an instruction makes without looking at others.
fn read_value<'a>(opcode: u8, input: &mut Input<'a>, stack: &mut Stack) -> Result<Value<'a>, String> {
    Ok(match opcode {
        b'Q' => Value::Storage(stack.pop()?),
        b'}' => Value::Dict(Vec::new()),
        b']' | b')' => Value::Sequence(Vec::new()),
        b't' => Value::Sequence(stack.pop_to_mark()?),
        0x85..=0x87 => Value::Sequence(stack.pop_last(usize::from(opcode - 0x84))?),
        b'X' => Value::Text(input.text(4)?),
        0x8c => Value::Text(input.text(1)?),
        0x8d => Value::Text(input.text(8)?),
        b'K' => Value::Int(input.unsigned(1)? as i64),
        b'M' => Value::Int(input.unsigned(2)? as i64),
        b'J' => Value::Int(i64::from(input.unsigned(4)? as i32)),
        0x8a => long(input)?,
        b'G' => input.take(8).map(|_| Value::Other)?,
        b'C' | b'B' | 0x8e => {
            let length = input.unsigned(if opcode == b'C' {
                1
            } else if opcode == b'B' {
                4
            } else {
                8
            })?;
            input.take(length).map(|_| Value::Other)?
        }
        b'N' | 0x88 | 0x89 => Value::Other,
        _ => return Err(format!("unsupported pickle instruction {opcode:#04x}")),
    })
}

/// The bytes of an index of the memo.
fn index_width(opcode: u8) -> u64 {
    if opcode == b'q' || opcode == b'h' { 1 } else { 4 }
}

/// A whole number after the number of its bytes. One of more than eight bytes cannot be a size.
fn long<'a>(input: &mut Input<'a>) -> Result<Value<'a>, String> {
    let width = input.unsigned(1)?;
    let bytes = input.take(width)?;
    let Some(last) = bytes.last().filter(|_| width <= 8) else {
        return Ok(if width == 0 { Value::Int(0) } else { Value::Other });
    };
    let mut whole = [if *last >= 0x80 { 0xff } else { 0 }; 8];
    whole[..bytes.len()].copy_from_slice(bytes);
    Ok(Value::Int(i64::from_le_bytes(whole)))
}

/// Calls what is below the top of the stack with the tuple at the top. Returns the result: a new value, or an argument.
fn call(values: &mut Vec<Value<'_>>, stack: &mut Stack) -> Result<ValueId, String> {
    let (arguments, function) = (stack.pop()?, stack.pop()?);
    let Value::Sequence(items) = &values[arguments] else {
        return Err("a call whose arguments are not a tuple".to_owned());
    };
    let made = match (&values[function], items.as_slice()) {
        (Value::Global(Global::OrderedDict), []) => Value::Dict(Vec::new()),
        (Value::Global(Global::RebuildTensor), _) => Value::Tensor(arguments),
        (Value::Global(Global::RebuildParameter), [tensor, ..]) => return Ok(*tensor),
        _ => return Err("a call that `torch.save` does not write".to_owned()),
    };
    values.push(made);
    Ok(values.len() - 1)
}

/// # Errors
/// If a state dict does not need `name` of `module`.
fn global<'a>(module: &'a str, name: &'a str) -> Result<Global<'a>, String> {
    match (module, name) {
        ("collections", "OrderedDict") => Ok(Global::OrderedDict),
        ("torch._utils", "_rebuild_tensor_v2") => Ok(Global::RebuildTensor),
        ("torch._utils", "_rebuild_parameter") => Ok(Global::RebuildParameter),
        // Types without a class of storages, such as f8.
        ("torch._utils", "_rebuild_tensor_v3") => {
            Err("a tensor has a type that is not supported; only f32, f16 and bf16 are".to_owned())
        }
        ("torch", class) if class.ends_with("Storage") && class.len() <= MAX_NAME_BYTES => {
            Ok(Global::StorageClass(class))
        }
        _ => Err(format!(
            "it contains a Python object, `{}.{}`; only tensors, dicts, lists, text and numbers are supported",
            shown(module),
            shown(name)
        )),
    }
}

/// The beginning of a name of the file, for a message.
pub(super) fn shown(name: &str) -> String {
    name.chars().take(100).collect::<String>().escape_debug().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(pickle: &[u8]) -> String {
        Pickle::read(pickle).expect_err("a hostile pickle")
    }

    #[test]
    fn a_pickle_that_calls_anything_is_refused() {
        for (pickle, name) in [
            (&b"cos\nsystem\n(X\x02\0\0\0lstR."[..], "`os.system`"),
            (b"\x80\x02cbuiltins\neval\n.", "`builtins.eval`"),
            (b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x02ls\x85R.", "`posix.system`"),
            (b"ctorch\nload\n.", "`torch.load`"),
            (b"ctorch._utils\n_rebuild_sparse_tensor\n.", "`torch._utils._rebuild_sparse_tensor`"),
            (b"c__main__\nGPTConfig\n)\x81}b.", "`__main__.GPTConfig`"),
            (b"ca\x1b[2J\nb\n.", "`a\\u{1b}[2J.b`"),
        ] {
            let error = error(pickle);
            assert!(error.contains(name), "{error}");
        }
        for (pickle, words) in [
            // INST, OBJ, NEWOBJ, EXT1, and a persistent id of protocol 0.
            (&b"(ios\nsystem\n."[..], "unsupported pickle instruction 0x69"),
            (b"(o.", "unsupported pickle instruction 0x6f"),
            (b"))\x81.", "unsupported pickle instruction 0x81"),
            (b"\x82\x01.", "unsupported pickle instruction 0x82"),
            (b"P1\n.", "unsupported pickle instruction 0x50"),
            (b"ctorch._utils\n_rebuild_tensor_v3\n.", "a type that is not supported"),
            (b"\x80\x06.", "unsupported pickle protocol 6"),
            (b"ctorch\nFloatStorage\n)R.", "a call that `torch.save` does not write"),
            (b"ccollections\nOrderedDict\n]\x85R.", "a call that"),
            (b"ctorch._utils\n_rebuild_parameter\n)R.", "a call that"),
            (b"))R.", "a call that"),
            (b"N)b.", "attributes of something"),
        ] {
            let error = error(pickle);
            assert!(error.contains(words), "{words}: {error}");
        }
    }

    #[test]
    fn a_pickle_that_is_cut_short_or_has_no_sense_is_refused() {
        for (pickle, words) in [
            (&b""[..], "cut short"),
            (b"\x80", "cut short"),
            (b"N", "cut short"),
            (b"cos", "cut short"),
            (b"X\xff\xff\xff\xffabc", "cut short"),
            (b"\x8d\xff\xff\xff\xff\xff\xff\xff\xffabc", "cut short"),
            (b"\x8e\xff\xff\xff\xff\xff\xff\xff\x7f", "cut short"),
            (b"\x8a\xff1", "cut short"),
            (b"X\x01\0\0\0\xff.", "not UTF-8"),
            (b".", "a value is missing"),
            (b"N(.", "a value is missing"),
            (b"N(R.", "a value is missing"),
            (b"N\x86.", "a value is missing"),
            (b"t.", "a mark is missing"),
            (b"h\0.", "an unknown index of the memo"),
            (b"q\0.", "a value is missing"),
            (b"NNa.", "not a list"),
            (b"NNNs.", "not a dict"),
            (b"KKKK\x93.", "a name that is not a text"),
        ] {
            let error = error(pickle);
            assert!(error.contains(words), "{words}: {error}");
        }
    }

    /// Neither depth nor references that double take more than their bytes.
    #[test]
    fn nesting_and_sharing_cost_no_more_than_their_bytes() {
        let deep: Vec<u8> = b"]".repeat(1 << 20).into_iter().chain(b"a".repeat((1 << 20) - 1)).chain(*b".").collect();
        Pickle::read(&deep).unwrap();
        // A list of two references to a list of two references, and so on.
        let doubling: Vec<u8> = b")q\0".iter().copied().chain(b"h\0h\0\x86q\0".repeat(100_000)).chain(*b".").collect();
        Pickle::read(&doubling).unwrap();
        // A list that holds itself.
        Pickle::read(b"]q\0h\0a.").unwrap();
        assert!(error(&b"N".repeat(MAX_VALUES + 2)).contains("more than"));
        // MEMOIZE, one byte for each entry of the memo.
        let memo: Vec<u8> = b"N".iter().copied().chain(std::iter::repeat_n(0x94, MAX_VALUES + 2)).collect();
        assert!(error(&memo).contains("more than"));
    }

    #[test]
    fn whole_numbers_have_their_signs() {
        for (pickle, number) in [
            (&b"K\xff."[..], Some(255)),
            (b"M\xff\xff.", Some(65_535)),
            (b"J\xff\xff\xff\xff.", Some(-1)),
            (b"\x8a\0.", Some(0)),
            (b"\x8a\x01\xff.", Some(-1)),
            (b"\x8a\x02\xff\0.", Some(255)),
            (b"\x8a\x08\0\0\0\0\0\0\0\x80.", Some(i64::MIN)),
            (b"\x8a\x09\0\0\0\0\0\0\0\x80\0.", None),
        ] {
            let pickle = Pickle::read(pickle).unwrap();
            assert_eq!(pickle.int(pickle.root), number);
        }
    }
}
