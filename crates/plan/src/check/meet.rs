//! Between ranks: messages and collectives, by running all programs against each other without computing anything.
//!
//! Channels are first in, first out, of a few slots; a send waits for a free one, a receive for a message, a collective for
//! all its members. Such a system reaches the same end however its parts are timed, so one run shows them all: if it gets
//! through, no timing can make it wait in a circle.

use std::collections::{HashMap, VecDeque};

use super::error::{CheckError, at, place};
use runner_spec::mesh::Group;
use runner_spec::program::{Instruction, Program};

/// Slots of a channel that are tried first; doubled while programs need more.
pub const SLOTS: usize = 2;

/// What the meeting showed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Meeting {
    /// Slots of each channel with which the programs get through.
    pub slots: usize,
}

/// What a rank is blocked by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wait {
    /// No message from this rank.
    Message(usize),
    /// No free slot towards this rank.
    Slot(usize),
    /// Members of the group that have not come to its n-th collective.
    Members(Group, usize),
}

/// A message under way: micro-batch and the part of the model that it is for; who sent it and where.
#[derive(Debug, Clone, Copy)]
struct Message {
    mb: usize,
    part: usize,
    index: usize,
}

/// The collectives of one group so far: what the n-th is, and who was there first.
#[derive(Debug, Default)]
struct Log {
    entries: Vec<Entry>,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    instruction: Instruction,
    rank: usize,
    index: usize,
    arrived: usize,
}

/// The instructions that all members of a group issue together, and whether they wait for each other.
fn collective(program: &Program, instruction: Instruction) -> Option<(Group, bool)> {
    let (stage, replica) = program.mesh.place(program.rank);
    match instruction {
        Instruction::CountTokens { .. }
        | Instruction::ClipNorm { .. }
        | Instruction::BroadcastWeights
        | Instruction::ReduceToRoot { .. } => Some((Group::World, true)),
        Instruction::AllReduce { .. } => Some((Group::Replicas { stage }, false)),
        Instruction::SumTied => Some((Group::Tied { replica }, true)),
        _ => None,
    }
}

struct Meet<'a> {
    programs: &'a [&'a Program],
    slots: usize,
    at: Vec<usize>,
    channels: HashMap<(usize, usize, bool), VecDeque<Message>>,
    logs: Vec<Log>,
    /// Per rank, collectives so far in World, Replicas and Tied.
    counts: Vec<[usize; 3]>,
    /// Whether a rank stands in a collective that it has joined already.
    joined: Vec<bool>,
}

/// Runs `programs` against each other.
///
/// # Errors
/// A message that is not the one expected, collectives in different orders, or a circle of waits.
pub(super) fn meet(programs: &[&Program]) -> Result<Meeting, CheckError> {
    let Some(first) = programs.first() else { return Ok(Meeting { slots: SLOTS }) };
    let mut slots = SLOTS;
    loop {
        let mut run = Meet {
            programs,
            slots,
            at: vec![0; programs.len()],
            channels: HashMap::new(),
            logs: (0..first.mesh.groups().len()).map(|_| Log::default()).collect(),
            counts: vec![[0; 3]; programs.len()],
            joined: vec![false; programs.len()],
        };
        let blocked = run.run()?;
        if blocked.is_empty() {
            run.all_received()?;
            return Ok(Meeting { slots });
        }
        // With more slots those sends would not wait; without such sends more slots do not help.
        if !blocked.iter().any(|(_, wait)| matches!(wait, Wait::Slot(_))) {
            return Err(run.circle(&blocked));
        }
        slots *= 2;
    }
}

impl Meet<'_> {
    /// Goes round until nobody moves; who is blocked then, and by what.
    fn run(&mut self) -> Result<Vec<(usize, Wait)>, CheckError> {
        let mut waiting: Vec<usize> = (0..self.programs.len()).collect();
        loop {
            let mut moved = false;
            let mut blocked = Vec::new();
            for &rank in &waiting {
                let wait = loop {
                    if self.at[rank] == self.programs[rank].step.len() {
                        break None;
                    }
                    if let Some(wait) = self.step(rank)? {
                        break Some(wait);
                    }
                    self.at[rank] += 1;
                    moved = true;
                };
                blocked.extend(wait.map(|wait| (rank, wait)));
            }
            if !moved || blocked.is_empty() {
                return Ok(blocked);
            }
            waiting = blocked.into_iter().map(|(rank, _)| rank).collect();
        }
    }

    /// Does the next instruction of `rank`, or says what it waits for.
    fn step(&mut self, rank: usize) -> Result<Option<Wait>, CheckError> {
        let program = self.programs[rank];
        let index = self.at[rank];
        let instruction = program.step[index];
        let replica = program.replica();
        let peer = |stage: usize| program.mesh.rank(stage, replica);
        match instruction {
            Instruction::SendActivation { mb, chunk, to } => {
                let part = program.virtual_stage(chunk) + 1;
                Ok(self.send(rank, peer(to), true, Message { mb, part, index }))
            }
            Instruction::SendGradient { mb, chunk, to } => {
                let part = program.virtual_stage(chunk) - 1;
                Ok(self.send(rank, peer(to), false, Message { mb, part, index }))
            }
            Instruction::RecvActivation { mb, chunk, from } => self.receive(rank, peer(from), true, mb, chunk),
            Instruction::RecvGradient { mb, chunk, from } => self.receive(rank, peer(from), false, mb, chunk),
            Instruction::WaitBuckets => {
                let group = Group::Replicas { stage: program.stage() };
                let Some(last) = self.counts[rank][1].checked_sub(1) else { return Ok(None) };
                let all = self.logs[program.mesh.index(group)].entries[last].arrived == program.mesh.size(group);
                Ok((!all).then_some(Wait::Members(group, last)))
            }
            _ => match collective(program, instruction) {
                Some((group, waits)) if program.mesh.size(group) > 1 => self.join(rank, group, waits),
                _ => Ok(None),
            },
        }
    }

    fn send(&mut self, from: usize, to: usize, activation: bool, message: Message) -> Option<Wait> {
        let channel = self.channels.entry((from, to, activation)).or_default();
        if channel.len() >= self.slots {
            return Some(Wait::Slot(to));
        }
        channel.push_back(message);
        None
    }

    fn receive(
        &mut self,
        rank: usize,
        from: usize,
        activation: bool,
        mb: usize,
        chunk: usize,
    ) -> Result<Option<Wait>, CheckError> {
        let program = self.programs[rank];
        let Some(message) = self.channels.entry((from, rank, activation)).or_default().pop_front() else {
            return Ok(Some(Wait::Message(from)));
        };
        if (message.mb, message.part) == (mb, program.virtual_stage(chunk)) {
            return Ok(None);
        }
        let sent = place(message.index, &self.programs[from].step[message.index]);
        let why = format!(
            "what comes next from rank {from} is micro-batch {} for part {} of the model ({sent})",
            message.mb, message.part
        );
        Err(at(program, self.at[rank], why))
    }

    fn join(&mut self, rank: usize, group: Group, waits: bool) -> Result<Option<Wait>, CheckError> {
        let program = self.programs[rank];
        let index = self.at[rank];
        let instruction = program.step[index];
        let kind = kind(group);
        let log = &mut self.logs[program.mesh.index(group)];
        if !self.joined[rank] {
            let nth = self.counts[rank][kind];
            match log.entries.get_mut(nth) {
                None => log.entries.push(Entry { instruction, rank, index, arrived: 1 }),
                Some(entry) if entry.instruction == instruction => entry.arrived += 1,
                Some(entry) => {
                    let other = place(entry.index, &entry.instruction);
                    let why = format!("rank {} issues {other} in its place: both would wait forever", entry.rank);
                    return Err(at(program, index, why));
                }
            }
            self.counts[rank][kind] += 1;
            self.joined[rank] = true;
        }
        let nth = self.counts[rank][kind] - 1;
        if waits && log.entries[nth].arrived < program.mesh.size(group) {
            return Ok(Some(Wait::Members(group, nth)));
        }
        self.joined[rank] = false;
        Ok(None)
    }

    fn all_received(&self) -> Result<(), CheckError> {
        let left = self.channels.iter().filter_map(|(key, queue)| Some((*key, *queue.front()?)));
        match left.min_by_key(|((from, ..), message)| (*from, message.index)) {
            None => Ok(()),
            Some(((from, to, _), message)) => {
                Err(at(self.programs[from], message.index, format!("rank {to} never receives it")))
            }
        }
    }

    /// The circle of waits, from the first rank in it; or the rank that waits for what never comes.
    fn circle(&self, blocked: &[(usize, Wait)]) -> CheckError {
        let waits: HashMap<usize, Wait> = blocked.iter().copied().collect();
        let mut path: Vec<usize> = Vec::new();
        let mut rank = blocked.first().map_or(0, |b| b.0);
        while let Some(wait) = waits.get(&rank) {
            if path.contains(&rank) {
                break;
            }
            path.push(rank);
            rank = match *wait {
                Wait::Message(other) | Wait::Slot(other) => other,
                Wait::Members(group, nth) => {
                    let members = self.programs[rank].mesh.members(group);
                    members.into_iter().find(|&r| self.counts[r][kind(group)] <= nth).unwrap_or(rank)
                }
            };
        }
        let name = |rank: usize| match self.programs[rank].step.get(self.at[rank]) {
            Some(instruction) => format!("rank {rank} at {}", place(self.at[rank], instruction)),
            None => format!("rank {rank}, which has ended its step"),
        };
        if let Some(begin) = path.iter().position(|&r| r == rank) {
            let circle = &path[begin..];
            let others: Vec<String> = circle[1..].iter().chain(&circle[..1]).map(|&r| name(r)).collect();
            let why = format!("it waits forever: for {}", others.join(", which waits for "));
            return at(self.programs[circle[0]], self.at[circle[0]], why);
        }
        let last = *path.last().unwrap_or(&rank);
        at(self.programs[last], self.at[last], format!("it waits forever, for {}", name(rank)))
    }
}

/// Where a rank's collectives of such a group are counted.
fn kind(group: Group) -> usize {
    match group {
        Group::World => 0,
        Group::Replicas { .. } => 1,
        Group::Tied { .. } => 2,
    }
}
