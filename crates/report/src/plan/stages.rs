//! Plans of many ranks as text: what the run has in common, then one block per group of equal ranks.

use super::RenderOptions;
use super::page::Page;
use super::rank::{computation_lines, evaluation_lines, model_lines, parameter_lines, program_lines};
use runner_plan::forecast::cost::count_chunks;
use runner_plan::quantity::{bytes, si};
use runner_spec::experiment::ParallelMode;
use runner_spec::format::{choice_name, count, counted};
use runner_spec::plan::{MemoryCategory, MemoryEstimate, ParamCounts, Plan, RankPlan};
use runner_spec::precision;
use runner_spec::program::{BlockRange, Program};

/// The most stages whose programs are all shown; of more stages, only the first and the last are.
const MAX_STAGES_SHOWN: usize = 4;

/// The most ranges of ranks that a name lists.
const MAX_RANGES_SHOWN: usize = 4;

/// The lines of a plan of several ranks.
pub(super) fn stage_lines(plan: &Plan, options: &RenderOptions, page: &mut Page) {
    let Some(first) = plan.ranks.first() else { return };
    common_lines(plan, first, page);
    let groups = rank_groups(plan);
    page.blank();
    for group in &groups {
        group_lines(group, page);
    }
    page.blank();
    memory_table(&groups, page);
    let stages = if options.instructions { plan.mesh.stages } else { 0 };
    for (stage, rank) in (0..stages).map(|s| (s, &plan.ranks[plan.mesh.rank(s, 0)])) {
        if plan.mesh.stages <= MAX_STAGES_SHOWN || stage == 0 || stage + 1 == plan.mesh.stages {
            page.blank();
            if plan.mesh.stages > 1 {
                page.line(&format!("stage {stage}"), "");
            }
            program_lines(&rank.program, page);
        }
    }
    if stages > MAX_STAGES_SHOWN {
        page.more("--rank N shows the program of another stage");
    }
    evaluation_lines(&first.program, page);
}

/// The state that replicas divide, after the layout.
fn sharded(program: &Program) -> String {
    if program.shards.is_empty() { String::new() } else { format!(", sharded {}", choice_name(&program.sharded)) }
}

/// The number of ranks, how they divide the work, and on which devices.
pub(super) fn layout_line(plan: &Plan, first: &RankPlan) -> String {
    let mesh = plan.mesh;
    let shape = match (mesh.mode, mesh.stages, mesh.replicas) {
        _ if plan.ranks.len() == 1 => first.device.to_string(),
        (ParallelMode::Pipeline, stages, 1) => format!("pipeline of {stages} stages"),
        (ParallelMode::Pipeline, stages, replicas) => {
            format!("{} replicas of a pipeline of {stages} stages{}", count(replicas as u64), sharded(&first.program))
        }
        (ParallelMode::Dp, _, replicas) => {
            format!("dp, {} replicas; rank 0 updates the weights", count(replicas as u64))
        }
        (_, _, replicas) => format!("ddp, {} replicas{}", count(replicas as u64), sharded(&first.program)),
    };
    let nodes = plan.ranks.iter().map(|r| r.hardware.node).max().unwrap_or(0) + 1;
    let nodes = if nodes > 1 { format!(", on {} nodes", count(nodes as u64)) } else { String::new() };
    let threads = match first.hardware.threads {
        1 => String::new(),
        threads => format!(", {threads} threads each"),
    };
    let threads = if plan.ranks.len() == 1 { threads.replace(" each", "") } else { threads };
    format!("{}: {shape}{nodes}; {}{threads}", count(plan.world_size as u64), first.hardware.name)
}

/// The parameters of the whole model that `program` trains a part of.
pub(super) fn whole_model(program: &Program) -> ParamCounts {
    let whole = BlockRange { start: 0, end: program.model.block_count() };
    count_chunks(&program.model, &[whole])
}

fn common_lines(plan: &Plan, first: &RankPlan, page: &mut Page) {
    if plan.mesh.stages > 1 && plan.mesh.replicas > 1 {
        page.line("neighbours", neighbours_line(first));
    }
    model_lines(&first.program, page);
    parameter_lines(&whole_model(&first.program), &first.program, page);
    computation_lines(first, Some(plan), page);
}

/// Why replicas of a stage, not stages of a replica, are neighbours: what each of them exchange in a step.
fn neighbours_line(first: &RankPlan) -> String {
    let Program { batch, model, precision, master_weights, .. } = &first.program;
    let gradients = first.params.total * precision::state_bytes(*master_weights);
    let positions = (batch.slice.1 * batch.length) as u64;
    let activations = 2 * positions * model.d_model as u64 * precision::activation_bytes(*precision);
    format!(
        "replicas of a stage are neighbouring ranks: they exchange {} of gradients a step, and neighbouring stages {} of activations",
        bytes(gradients),
        bytes(activations)
    )
}

/// The ranks in groups that the text shows as one, in the order of their first ranks. The ranks of a group have the same stage and memory, and
/// devices of the same name with as many threads; they update as many weights, and either all or none of them copy what they save. No group
/// is empty.
fn rank_groups(plan: &Plan) -> Vec<Vec<&RankPlan>> {
    let is_alike = |a: &RankPlan, b: &RankPlan| {
        let key = |r: &RankPlan| (r.stage, r.program.cost_class(), r.hardware.threads, r.memory.total());
        key(a) == key(b) && a.hardware.name == b.hardware.name
    };
    let mut groups: Vec<Vec<&RankPlan>> = Vec::new();
    for rank in &plan.ranks {
        // Most ranks are like the one before them.
        match groups.iter_mut().rev().find(|group| is_alike(group[0], rank)) {
            Some(group) => group.push(rank),
            None => groups.push(vec![rank]),
        }
    }
    groups
}

/// `ranks 0, 3 … 7, 9`, of many only the first.
fn group_name(group: &[&RankPlan]) -> String {
    let mut ranges: Vec<[usize; 2]> = Vec::new();
    for rank in group.iter().map(|rank| rank.rank) {
        match ranges.last_mut().filter(|[_, last]| last + 1 == rank) {
            Some(range) => range[1] = rank,
            None => ranges.push([rank, rank]),
        }
    }
    let shown = &ranges[..ranges.len().min(MAX_RANGES_SHOWN)];
    let left: usize = ranges[shown.len()..].iter().map(|[first, last]| last - first + 1).sum();
    let name = |[first, last]: &[usize; 2]| match last - first {
        0 => count(*first as u64),
        _ => format!("{} … {}", count(*first as u64), count(*last as u64)),
    };
    let names: Vec<String> = shown.iter().map(name).collect();
    let more = if left > 0 { format!(" and {} more", count(left as u64)) } else { String::new() };
    let word = if group.len() == 1 { "rank" } else { "ranks" };
    format!("{word} {}{more}", names.join(", "))
}

fn group_lines(group: &[&RankPlan], page: &mut Page) {
    let rank = group[0];
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
    let memory = h.memory_bytes.map_or_else(String::new, |m| format!(" of {}{}", bytes(m), h.memory_limit_note()));
    let threads = if h.threads > 1 { format!(", {} threads", h.threads) } else { String::new() };
    page.line(&format!("stage {}", rank.stage), format!("{} on {}{memory}{threads}", group_name(group), h.name));
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
    if let Some(shard) = rank.program.shard() {
        page.more(format!("updates {} parameters, and receives the others", count(shard.len() as u64)));
    }
}

fn memory_table(groups: &[Vec<&RankPlan>], page: &mut Page) {
    // CPUs have no context and GPUs no copy for checkpoints, and then no column for it.
    let is_needed = |column: usize| groups.iter().any(|group| group[0].memory.categories()[column].1 > 0);
    let is_shown = |category: MemoryCategory, column: usize| {
        !matches!(category, MemoryCategory::Checkpoint | MemoryCategory::Context) || is_needed(column)
    };
    let columns = |memory: &MemoryEstimate| {
        let categories = memory.categories().into_iter().enumerate();
        categories.filter(|(column, (category, _))| is_shown(*category, *column)).map(|(_, category)| category)
    };
    let row = |cells: Vec<String>| cells.iter().map(|c| format!("{c:>13}")).collect::<Vec<_>>().concat();
    let width = groups.iter().map(|group| group_name(group).chars().count()).max().unwrap_or(0);
    let Some(first) = groups.first() else { return };
    let mut names: Vec<String> = columns(&first[0].memory).map(|(category, _)| category.name().to_owned()).collect();
    names.push("total".to_owned());
    page.line("memory", format!("{:<width$}{}", "per rank", row(names)));
    for group in groups {
        let memory = &group[0].memory;
        let mut cells: Vec<String> = columns(memory).map(|(_, sum)| bytes(sum)).collect();
        cells.push(bytes(memory.total()));
        page.more(format!("{:<width$}{}", group_name(group), row(cells)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use runner_plan::testing::{compiled, experiment};
    use runner_spec::experiment::{Parallel, ShardedState};

    /// On CPUs the first rank is in a process with the command.
    #[test]
    fn equal_ranks_are_one_group_wherever_they_are() {
        let mut experiment = experiment();
        experiment.parallel = Parallel { mode: ParallelMode::Ddp, replicas: 4, ..Parallel::single() };
        let plan = compiled(&experiment);
        let names = |groups: Vec<Vec<&RankPlan>>| groups.iter().map(|group| group_name(group)).collect::<Vec<_>>();
        assert_eq!(names(rank_groups(&plan)), ["rank 0", "ranks 1 … 3"]);
        experiment.parallel.shard = Some(ShardedState::Optimizer);
        let plan = compiled(&experiment);
        let groups = rank_groups(&plan);
        assert_eq!(groups.iter().map(Vec::len).sum::<usize>(), 4);
        for group in &groups {
            assert!(group.iter().all(|rank| rank.memory.total() == group[0].memory.total()));
        }
        let ranks: Vec<&RankPlan> = [0, 2, 3, 1].iter().map(|&rank| &plan.ranks[rank]).collect();
        assert_eq!(
            (group_name(&ranks[..3]).as_str(), group_name(&ranks).as_str()),
            ("ranks 0, 2 … 3", "ranks 0, 2 … 3, 1")
        );
        let mut scattered = plan.ranks.clone();
        (0..4).for_each(|i| scattered[i].rank = 2 * i);
        scattered.push(RankPlan { rank: 11, ..scattered[0].clone() });
        let scattered: Vec<&RankPlan> = scattered.iter().collect();
        assert_eq!(group_name(&scattered), "ranks 0, 2, 4, 6 and 1 more");
    }
}
