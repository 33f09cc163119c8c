//! Matches messages and collectives between ranks, and finds deadlocks, by running all programs together without computing anything.
//!
//! Channels are first in, first out, with a few slots. A send waits for a free slot, a receive for a message, a collective for
//! all its members. The outcome does not depend on timing, so one simulated run covers every interleaving.

use std::collections::{HashMap, VecDeque};

use super::error::{CheckError, Result, instruction_name};
use crate::schedule::interleaving::{StoppedRanks, interleave_steps};
use runner_spec::mesh::RankGroup;
use runner_spec::program::{Instruction, Program};
use runner_spec::topology::Lane;

/// The first number of slots per channel that is tried; it is doubled while programs need more.
pub const INITIAL_CHANNEL_SLOTS: usize = 2;

/// The event that a blocked rank waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wait {
    /// A message from this rank.
    Message(usize),
    /// A free slot of the channel to this rank.
    Slot(usize),
    /// The other members of the group at its n-th collective.
    Members(RankGroup, usize),
}

/// A message in a channel: its micro-batch, the part of the model that it is for, and the index of the send.
#[derive(Debug, Clone, Copy)]
struct Message {
    mb: usize,
    part: usize,
    index: usize,
}

/// One collective of a group: the rank that issued it first and where, and how many members have arrived.
#[derive(Debug, Clone, Copy)]
struct Collective {
    instruction: Instruction,
    rank: usize,
    index: usize,
    arrived: usize,
}

/// The group that issues `instruction` together, and whether its members wait for each other there; `None` if it is not a collective.
fn collective_group(program: &Program, instruction: Instruction) -> Option<(RankGroup, bool)> {
    let (stage, replica) = program.mesh.stage_and_replica(program.rank);
    match instruction {
        Instruction::CountTokens { .. }
        | Instruction::ClipNorm { .. }
        | Instruction::BroadcastWeights
        | Instruction::ReduceToRoot { .. } => Some((RankGroup::World, true)),
        Instruction::AllReduce { .. } | Instruction::ReduceScatter { .. } | Instruction::PrefetchParameters { .. } => {
            Some((RankGroup::Replicas { stage }, false))
        }
        Instruction::GatherParameters { .. } => Some((RankGroup::Replicas { stage }, true)),
        Instruction::SumTied => Some((RankGroup::Tied { replica }, true)),
        _ => None,
    }
}

struct MessageRun<'a> {
    programs: &'a [&'a Program],
    slots: usize,
    /// Messages under way, by sender, receiver and lane.
    channels: HashMap<(usize, usize, Lane), VecDeque<Message>>,
    /// The collectives of each group, in order.
    collectives: HashMap<RankGroup, Vec<Collective>>,
    /// The number of a group's collectives that a rank has joined, by rank and group.
    counts: HashMap<(usize, RankGroup), usize>,
    /// Per rank, whether it has joined the collective at its position.
    joined: Vec<bool>,
}

/// Runs `programs` together. Returns the slots that each channel needs.
///
/// # Errors
/// A message that is not the expected one, collectives in different orders, or a deadlock.
pub(super) fn match_messages(programs: &[&Program]) -> Result<usize> {
    let mut slots = INITIAL_CHANNEL_SLOTS;
    loop {
        let mut run = MessageRun {
            programs,
            slots,
            channels: HashMap::new(),
            collectives: HashMap::new(),
            counts: HashMap::new(),
            joined: vec![false; programs.len()],
        };
        let stopped = interleave_steps(programs, |rank, index| run.step(rank, index))?;
        if stopped.blocked.is_empty() {
            run.check_all_received()?;
            return Ok(slots);
        }
        // More slots help only if a send waits for one.
        if !stopped.blocked.iter().any(|(_, wait)| matches!(wait, Wait::Slot(_))) {
            return Err(run.deadlock_error(&stopped));
        }
        slots *= 2;
    }
}

impl MessageRun<'_> {
    /// Executes instruction `index` of `rank`, or returns the event that it waits for.
    fn step(&mut self, rank: usize, index: usize) -> Result<Option<Wait>> {
        let program = self.programs[rank];
        let instruction = program.step[index];
        let replica = program.replica();
        let peer = |stage: usize| program.mesh.rank(stage, replica);
        match instruction {
            Instruction::SendActivation { mb, chunk, to } => {
                let part = program.virtual_stage(chunk) + 1;
                Ok(self.send(rank, peer(to), Lane::Activation, Message { mb, part, index }))
            }
            Instruction::SendGradient { mb, chunk, to } => {
                let part = program.virtual_stage(chunk) - 1;
                Ok(self.send(rank, peer(to), Lane::Gradient, Message { mb, part, index }))
            }
            Instruction::RecvActivation { mb, chunk, from } => {
                self.receive((rank, index), peer(from), Lane::Activation, (mb, chunk))
            }
            Instruction::RecvGradient { mb, chunk, from } => {
                self.receive((rank, index), peer(from), Lane::Gradient, (mb, chunk))
            }
            Instruction::WaitBuckets => {
                let group = RankGroup::Replicas { stage: program.stage() };
                let Some(last) = self.joined_count(rank, group).checked_sub(1) else { return Ok(None) };
                let all = self.collectives[&group][last].arrived == program.mesh.size(group);
                Ok((!all).then_some(Wait::Members(group, last)))
            }
            _ => match collective_group(program, instruction) {
                Some((group, waits)) if program.mesh.size(group) > 1 => self.join(rank, index, group, waits),
                _ => Ok(None),
            },
        }
    }

    fn send(&mut self, from: usize, to: usize, lane: Lane, message: Message) -> Option<Wait> {
        let channel = self.channels.entry((from, to, lane)).or_default();
        if channel.len() >= self.slots {
            return Some(Wait::Slot(to));
        }
        channel.push_back(message);
        None
    }

    fn receive(
        &mut self,
        (rank, index): (usize, usize),
        from: usize,
        lane: Lane,
        (mb, chunk): (usize, usize),
    ) -> Result<Option<Wait>> {
        let program = self.programs[rank];
        let Some(message) = self.channels.entry((from, rank, lane)).or_default().pop_front() else {
            return Ok(Some(Wait::Message(from)));
        };
        if (message.mb, message.part) == (mb, program.virtual_stage(chunk)) {
            return Ok(None);
        }
        let sent = instruction_name(message.index, &self.programs[from].step[message.index]);
        let why = format!(
            "what comes next from rank {from} is micro-batch {} for part {} of the model ({sent})",
            message.mb, message.part
        );
        Err(CheckError::at_instruction(program, index, why))
    }

    fn join(&mut self, rank: usize, index: usize, group: RankGroup, waits: bool) -> Result<Option<Wait>> {
        let program = self.programs[rank];
        let instruction = program.step[index];
        let collectives = self.collectives.entry(group).or_default();
        let count = self.counts.entry((rank, group)).or_default();
        if !self.joined[rank] {
            let nth = *count;
            match collectives.get_mut(nth) {
                None => collectives.push(Collective { instruction, rank, index, arrived: 1 }),
                Some(entry) if entry.instruction == instruction => entry.arrived += 1,
                Some(entry) => {
                    let other = instruction_name(entry.index, &entry.instruction);
                    let why = format!("rank {} issues {other} in its place: both would wait forever", entry.rank);
                    return Err(CheckError::at_instruction(program, index, why));
                }
            }
            *count += 1;
            self.joined[rank] = true;
        }
        let nth = *count - 1;
        if waits && collectives[nth].arrived < program.mesh.size(group) {
            return Ok(Some(Wait::Members(group, nth)));
        }
        self.joined[rank] = false;
        Ok(None)
    }

    fn joined_count(&self, rank: usize, group: RankGroup) -> usize {
        self.counts.get(&(rank, group)).copied().unwrap_or(0)
    }

    fn check_all_received(&self) -> Result<()> {
        let left = self.channels.iter().filter_map(|(key, queue)| Some((*key, *queue.front()?)));
        match left.min_by_key(|((from, ..), message)| (*from, message.index)) {
            None => Ok(()),
            Some(((from, to, _), message)) => Err(CheckError::at_instruction(
                self.programs[from],
                message.index,
                format!("rank {to} never receives it"),
            )),
        }
    }

    /// Names the circle of waits, from the first rank in it; or the rank that waits for something that never comes.
    fn deadlock_error(&self, stopped: &StoppedRanks<Wait>) -> CheckError {
        let StoppedRanks { next_instructions, blocked } = stopped;
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
                    members.into_iter().find(|&r| self.joined_count(r, group) <= nth).unwrap_or(rank)
                }
            };
        }
        let name = |rank: usize| match self.programs[rank].step.get(next_instructions[rank]) {
            Some(instruction) => format!("rank {rank} at {}", instruction_name(next_instructions[rank], instruction)),
            None => format!("rank {rank}, which has ended its step"),
        };
        if let Some(begin) = path.iter().position(|&r| r == rank) {
            let circle = &path[begin..];
            let others: Vec<String> = circle[1..].iter().chain(&circle[..1]).map(|&r| name(r)).collect();
            let why = format!("it waits forever: for {}", others.join(", which waits for "));
            return CheckError::at_instruction(self.programs[circle[0]], next_instructions[circle[0]], why);
        }
        let last = *path.last().unwrap_or(&rank);
        CheckError::at_instruction(
            self.programs[last],
            next_instructions[last],
            format!("it waits forever, for {}", name(rank)),
        )
    }
}
