//! Plans of many ranks as text: what the run has in common, then one block per group of equal ranks.

use super::{Page, computation_lines, model_line, program_lines};
use crate::quantity::{bytes, si};
use runner_spec::format::{count, counted};
use runner_spec::mesh::Mode;
use runner_spec::plan::{MemoryCategory, MemoryEstimate, Plan, RankPlan};

/// The most stages whose programs are all shown; of more stages, only the first and the last are.
const MAX_STAGES_SHOWN: usize = 4;

/// Ranks that the text shows as one: they are of one stage, on devices of one name, and all or none of them update weights.
struct RankGroup<'a> {
    ranks: Vec<&'a RankPlan>,
}

/// The lines of a plan of several ranks; with `full`, every instruction of each stage's program.
pub(super) fn stage_lines(plan: &Plan, full: bool, page: &mut Page) {
    let Some(first) = plan.ranks.first() else { return };
    common_lines(plan, first, page);
    let groups = rank_groups(plan);
    page.blank();
    for group in &groups {
        group.lines(page);
    }
    page.blank();
    memory_table(&groups, page);
    for (stage, rank) in (0..plan.mesh.stages).map(|s| (s, &plan.ranks[plan.mesh.rank(s, 0)])) {
        if full || plan.mesh.stages <= MAX_STAGES_SHOWN || stage == 0 || stage + 1 == plan.mesh.stages {
            page.blank();
            if plan.mesh.stages > 1 {
                page.line(&format!("stage {stage}"), "");
            }
            program_lines(&rank.program, full, page);
        }
    }
    if plan.mesh.stages > MAX_STAGES_SHOWN && !full {
        page.more("--program shows the other stages' programs");
    }
}

fn common_lines(plan: &Plan, first: &RankPlan, page: &mut Page) {
    let mesh = plan.mesh;
    let shape = match (mesh.mode, mesh.stages, mesh.replicas) {
        (Mode::Pipeline, stages, 1) => format!("pipeline of {stages} stages"),
        (Mode::Pipeline, stages, replicas) => {
            format!("{} replicas of a pipeline of {stages} stages", count(replicas as u64))
        }
        (Mode::Dp, _, replicas) => format!("dp, {} replicas; rank 0 updates the weights", count(replicas as u64)),
        (_, _, replicas) => format!("ddp, {} replicas", count(replicas as u64)),
    };
    let nodes = plan.ranks.iter().map(|r| r.hardware.node).max().unwrap_or(0) + 1;
    let nodes = if nodes > 1 { format!(", on {} nodes", count(nodes as u64)) } else { String::new() };
    page.line("ranks", format!("{}: {shape}{nodes}", count(plan.world_size as u64)));
    page.line("model", model_line(&first.program));
    page.line("parameters", count(plan.totals.parameters));
    computation_lines(first, Some(plan), page);
}

/// The groups in the order of ranks.
fn rank_groups(plan: &Plan) -> Vec<RankGroup<'_>> {
    let mut out: Vec<RankGroup<'_>> = Vec::new();
    for rank in &plan.ranks {
        let key = |r: &RankPlan| (r.stage, r.hardware.threads, r.program.owns_optimizer());
        match out.last_mut() {
            Some(last) if key(last.ranks[0]) == key(rank) && last.ranks[0].hardware.name == rank.hardware.name => {
                last.ranks.push(rank);
            }
            _ => out.push(RankGroup { ranks: vec![rank] }),
        }
    }
    out
}

impl RankGroup<'_> {
    fn name(&self) -> String {
        let (first, last) = (self.ranks[0].rank, self.ranks[self.ranks.len() - 1].rank);
        if first == last {
            format!("rank {first}")
        } else {
            format!("ranks {} … {}", count(first as u64), count(last as u64))
        }
    }

    fn lines(&self, page: &mut Page) {
        let rank = self.ranks[0];
        let last = rank.program.model.layers + 1;
        let blocks: Vec<String> = rank
            .chunks
            .iter()
            .map(|c| {
                let layers = rank.program.model.layers_in(c.range());
                let embedding = if c.contains(0) { "embedding, " } else { "" };
                let head = if c.contains(last) { ", head" } else { "" };
                format!("{embedding}{}{head}", counted(layers as u64, "layer"))
            })
            .collect();
        let buckets = match rank.program.buckets.len() {
            0 => String::new(),
            n => format!(", {}", counted(n as u64, "bucket")),
        };
        let h = &rank.hardware;
        let memory = h.memory_bytes.map_or_else(String::new, |m| format!(" of {}", bytes(m)));
        let threads = if h.threads > 1 { format!(", {} threads", h.threads) } else { String::new() };
        page.line(&format!("stage {}", rank.stage), format!("{} on {}{memory}{threads}", self.name(), h.name));
        page.more(format!(
            "{}: {} parameters{buckets}; {} micro-batch{} in flight; forward {}, backward {}",
            blocks.join(" | "),
            count(rank.params.total),
            rank.in_flight,
            if rank.in_flight == 1 { "" } else { "es" },
            si(rank.flops.forward, "FLOP"),
            si(rank.flops.backward, "FLOP")
        ));
        if !rank.program.owns_optimizer() {
            page.more("no optimizer state: rank 0 updates");
        }
    }
}

fn memory_table(groups: &[RankGroup<'_>], page: &mut Page) {
    // A category that is zero everywhere has no column.
    let shown = |of: MemoryCategory| {
        let sum = |a: &RankGroup<'_>| {
            a.ranks[0].memory.categories().into_iter().find(|(c, _)| *c == of).map_or(0, |(_, b)| b)
        };
        of != MemoryCategory::Context || groups.iter().any(|a| sum(a) > 0)
    };
    let columns = |memory: &MemoryEstimate| memory.categories().into_iter().filter(|(of, _)| shown(*of));
    let row = |cells: Vec<String>| cells.iter().map(|c| format!("{c:>13}")).collect::<Vec<_>>().concat();
    let width = groups.iter().map(|a| a.name().chars().count()).max().unwrap_or(0);
    let Some(first) = groups.first() else { return };
    let mut names: Vec<String> = columns(&first.ranks[0].memory).map(|(of, _)| of.name().to_owned()).collect();
    names.push("total".to_owned());
    page.line("memory", format!("{:<width$}{}", "per rank", row(names)));
    for group in groups {
        let memory = &group.ranks[0].memory;
        let mut cells: Vec<String> = columns(memory).map(|(_, sum)| bytes(sum)).collect();
        cells.push(bytes(memory.total()));
        page.more(format!("{:<width$}{}", group.name(), row(cells)));
    }
}
