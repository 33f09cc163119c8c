//! The scheduler against a plain simulation that knows all results beforehand, under random orders of real completion.

use std::collections::{HashMap, HashSet};

use super::*;
use runner_spec::philox::Philox;
use runner_spec::plan::Pace;

/// A stream of small random numbers.
struct Dice(Philox, u32);

impl Dice {
    fn new(seed: u64) -> Self {
        Self(Philox::new(seed, "schedule tests"), 0)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.1 += 1;
        u64::from(self.0.block([self.1, 0, 0, 0])[0]) % n
    }
}

fn unit(n: usize, rungs: &[u64]) -> Vec<PointTask> {
    vec![PointTask { step_cost: 1.0, rungs: rungs.to_vec(), shared: 0 }; n]
}

fn names(order: &[TrainingSegment]) -> Vec<String> {
    order.iter().map(|s| format!("{}/{}", s.task, s.rung)).collect()
}

const HALVE_BY_THREE: PromotionRule = PromotionRule { goal: Goal::Minimize, reduction: Some(3) };

#[test]
fn twelve_tasks_are_promoted_as_by_hand() {
    let tasks = unit(12, &[1, 3, 9]);
    // The lower the index the better: after every third result at the first rung, one more of the best is promoted.
    let rising = decide(&tasks, 1, HALVE_BY_THREE, &|task, _| Some(SegmentResult::Value(task as f64)));
    let expected = "0/0 1/0 2/0 0/1 3/0 4/0 5/0 1/1 6/0 7/0 8/0 2/1 0/2 9/0 10/0 11/0 3/1";
    assert_eq!(names(&rising.order).join(" "), expected);
    assert!(rising.is_finished && rising.due.is_empty());
    // 12 tasks of one step, 4 of two more, 1 of six more.
    assert_eq!(rising.virtual_end, 12.0 + 4.0 * 2.0 + 6.0);
    assert_eq!(rising.order[12], TrainingSegment { task: 0, rung: 2, until: 9 });

    // The higher the index the better: every result is the best yet, so more is promoted than in hindsight.
    let falling = decide(&tasks, 1, HALVE_BY_THREE, &|task, _| Some(SegmentResult::Value(-(task as f64))));
    let expected = "0/0 1/0 2/0 2/1 3/0 3/1 4/0 4/1 4/2 5/0 5/1 5/2 6/0 6/1 6/2 7/0 7/1 7/2 8/0 8/1 8/2 \
                    9/0 9/1 9/2 10/0 10/1 10/2 11/0 11/1 11/2";
    assert_eq!(names(&falling.order).join(" "), expected);
}

#[test]
fn two_workers_promote_as_by_hand() {
    let tasks = unit(4, &[2, 4]);
    let rule = PromotionRule { goal: Goal::Maximize, reduction: Some(2) };
    let values = [0.1, 0.4, 0.3, 0.2];
    let all = decide(&tasks, 2, rule, &|task, _| Some(SegmentResult::Value(values[task])));
    // At time 2 worker 0 ends first and knows one result of two; worker 1 knows both, and promotes 1. At time 4 worker 0 has
    // ended 2 (3 results, top 1 is 1) and starts 3; at time 6, 4 results: the top two are 1 and 2.
    assert_eq!(names(&all.order).join(" "), "0/0 1/0 2/0 1/1 3/0 2/1");
    assert_eq!(all.virtual_end, 8.0);
}

/// Everything that is in the way of a decision is due, and nothing else.
#[test]
fn waits_for_what_ends_first_in_virtual_time() {
    let tasks = unit(3, &[2]);
    let rule = PromotionRule { goal: Goal::Minimize, reduction: None };
    // Task 1 is done, though task 0, which is as long and on a lower worker, is not.
    let now = decide(&tasks, 2, rule, &|task, _| (task == 1).then_some(SegmentResult::Value(0.0)));
    assert_eq!((names(&now.due), now.is_finished), (vec!["0/0".to_owned()], false));
    let now = decide(&tasks, 2, rule, &|task, _| (task == 0).then_some(SegmentResult::Failed));
    assert_eq!(names(&now.due), ["1/0", "2/0"]);
    assert_eq!(now.virtual_end, 2.0);
}

#[test]
fn without_early_stop_a_task_is_one_segment() {
    let tasks = unit(3, &[2, 5]);
    let rule = PromotionRule { goal: Goal::Minimize, reduction: None };
    let all = decide(&tasks, 2, rule, &|_, rung| (rung == 1).then_some(SegmentResult::Failed));
    assert_eq!(all.order.iter().map(|s| (s.task, s.until)).collect::<Vec<_>>(), [(0, 5), (1, 5), (2, 5)]);
    assert!(all.is_finished);
    assert_eq!(all.virtual_end, 10.0);
}

#[test]
fn nothing_to_do_is_over_and_odd_requests_are_taken_as_meant() {
    let never: &dyn Fn(usize, usize) -> Option<SegmentResult> = &|_, _| None;
    assert!(decide(&[], 4, HALVE_BY_THREE, never).is_finished);
    assert!(decide(&unit(2, &[]), 4, HALVE_BY_THREE, never).is_finished);
    assert_eq!(decide(&unit(2, &[1]), 0, HALVE_BY_THREE, never).due.len(), 1);
    for step_cost in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let tasks = [PointTask { step_cost, rungs: vec![7], shared: 0 }];
        assert_eq!(decide(&tasks, 1, HALVE_BY_THREE, &|_, _| Some(SegmentResult::Failed)).virtual_end, 7.0);
    }
}

#[test]
fn failed_and_nan_results_count_but_are_never_promoted() {
    let tasks = unit(6, &[1, 2]);
    for bad in [SegmentResult::Failed, SegmentResult::Value(f64::NAN)] {
        for goal in Goal::ALL {
            let rule = PromotionRule { goal, reduction: Some(3) };
            let all = decide(&tasks, 1, rule, &|_, _| Some(bad));
            assert_eq!(names(&all.order).join(" "), "0/0 1/0 2/0 3/0 4/0 5/0");
            // Infinity is a number, and better than none: the two failures of three make it the top one.
            let one = decide(&tasks, 1, rule, &|task, _| {
                Some(if task == 1 { SegmentResult::Value(f64::INFINITY) } else { bad })
            });
            assert_eq!(names(&one.order).join(" "), "0/0 1/0 2/0 1/1 3/0 4/0 5/0");
        }
    }
}

#[test]
fn equal_values_go_to_the_lower_index() {
    for (a, b) in [(1.0, 1.0), (0.0, -0.0), (-0.0, 0.0)] {
        for goal in Goal::ALL {
            let rule = PromotionRule { goal, reduction: Some(2) };
            let value = |task: usize| SegmentResult::Value(if task == 0 { a } else { b });
            let all = decide(&unit(2, &[1, 2]), 1, rule, &|task, _| Some(value(task)));
            assert_eq!(names(&all.order).join(" "), "0/0 1/0 0/1", "{a} {b} {goal:?}");
        }
    }
}

#[test]
fn rungs_are_powers_rounded_up_and_end_with_the_total() {
    let judged = |min_steps: u64, reduction, steps, every| {
        let pace = Pace { tokens_per_step: 10, flops_per_step: 1e3, ..Pace::default() };
        let run = RunLength { steps, pace: &pace, every };
        rungs(&AshaSettings { unit: MilestoneUnit::Steps, first: min_steps as f64, reduction }, run)
    };
    assert_eq!(judged(100, 3, 1000, 1), [100, 300, 900, 1000]);
    assert_eq!(judged(100, 3, 900, 1), [100, 300, 900]);
    assert_eq!(judged(100, 3, 1000, 250), [250, 500, 1000]);
    assert_eq!(judged(1, 2, 20, 8), [8, 16, 20]);
    assert_eq!(judged(1, 2, 20, 30), [20]);
    assert_eq!(judged(50, 2, 50, 0), [50]);
    assert_eq!(judged(50, 2, 0, 5), [0]);
    assert_eq!(judged(1 << 52, 1 << 40, u64::MAX, 1), [1 << 52, u64::MAX]);
}

/// Runs of different batches and models are judged at equal tokens or FLOPs: after the first measurement that has as many.
#[test]
fn milestones_in_tokens_and_flops_are_reached_by_the_first_measurement() {
    let judged = |(unit, first), steps, tokens_per_step, flops_per_step, every| {
        let pace = Pace { tokens_per_step, flops_per_step, ..Pace::default() };
        let run = RunLength { steps, pace: &pace, every };
        rungs(&AshaSettings { unit, first, reduction: 3 }, run)
    };
    let tokens = (MilestoneUnit::Tokens, 1000.0);
    // 1,000, 3,000 and 9,000 of 16,000 tokens.
    assert_eq!(judged(tokens, 1600, 10, 1.0, 1), [100, 300, 900, 1600]);
    assert_eq!(judged(tokens, 400, 40, 1.0, 1), [25, 75, 225, 400]);
    assert_eq!(judged(tokens, 400, 40, 1.0, 10), [30, 80, 230, 400]);
    assert_eq!(judged(tokens, 1500, 11, 1.0, 1), [91, 273, 819, 1500], "ceil(1000 / 11) = 91");
    assert_eq!(judged(tokens, 25, 40, 1.0, 1), [25], "its end has the first milestone");
    assert_eq!(judged(tokens, 400, 40, 1.0, 100), [100, 100, 300, 400], "two milestones at one measurement");
    let flops = (MilestoneUnit::Flops, 1e12);
    assert_eq!(judged(flops, 2000, 1, 1e10, 1), [100, 300, 900, 2000]);
    assert_eq!(judged(flops, 2000, 1, 3e9, 5), [335, 1000, 2000]);
    for per_step in [0.1, 0.3, 1.7e9, 3.3e11, 1e13] {
        for times in 1..50_u64 {
            let flops = times as f64 * 0.7 * per_step;
            let pace = Pace { flops_per_step: per_step, ..Pace::default() };
            let steps = steps_to(flops, MilestoneUnit::Flops, &pace, u64::MAX).expect("reached");
            assert!(steps as f64 * per_step >= flops, "{per_step} {times}: {steps} steps have too few");
            assert!(steps == 1 || ((steps - 1) as f64 * per_step) < flops, "{per_step} {times}: fewer than {steps} do");
        }
    }
}

/// A sweep of random shape with random results, ties and failures among them.
struct Case {
    tasks: Vec<PointTask>,
    workers: usize,
    rule: PromotionRule,
    results: HashMap<(usize, usize), SegmentResult>,
}

fn case(dice: &mut Dice) -> Case {
    let goal = Goal::ALL[dice.below(2) as usize];
    let rule = PromotionRule { goal, reduction: Some(2 + dice.below(3)) };
    let mut results = HashMap::new();
    let tasks: Vec<PointTask> = (0..dice.below(28) as usize)
        .map(|task| {
            let rungs: Vec<u64> = (0..=dice.below(4)).map(|k| 3_u64.pow(k as u32)).collect();
            for rung in 0..rungs.len() {
                let finding = match dice.below(12) {
                    0 => SegmentResult::Failed,
                    1 => SegmentResult::Value(f64::NAN),
                    _ => SegmentResult::Value(dice.below(9) as f64),
                };
                results.insert((task, rung), finding);
            }
            PointTask { step_cost: [1.0, 1.0, 0.3, 2.5][dice.below(4) as usize], rungs, shared: 0 }
        })
        .collect();
    Case { tasks, workers: 1 + dice.below(5) as usize, rule, results }
}

/// The rule as in the paper, with all results available and without regard to speed; and whether each promotion was of the top.
fn plain(case: &Case) -> Vec<TrainingSegment> {
    let reduction = case.rule.reduction.unwrap() as usize;
    let better = |&(a, x): &(usize, SegmentResult), &(b, y): &(usize, SegmentResult)| {
        let number = |f| if let SegmentResult::Value(v) = f { v } else { f64::NAN };
        case.rule.goal.order(number(x), number(y)).then(a.cmp(&b))
    };
    let mut known: Vec<Vec<(usize, SegmentResult)>> = vec![Vec::new(); 8];
    let mut promoted: HashSet<(usize, usize)> = HashSet::new();
    let mut order = Vec::new();
    let mut busy: Vec<(f64, usize, TrainingSegment)> = Vec::new();
    let (mut now, mut next) = (0.0, 0);
    loop {
        for worker in 0..case.workers {
            if busy.iter().any(|&(_, w, _)| w == worker) {
                continue;
            }
            let mut choice = None;
            for rung in (0..8).rev() {
                let mut sorted = known[rung].clone();
                sorted.sort_by(better);
                sorted.truncate(known[rung].len() / reduction);
                choice = choice.or_else(|| {
                    sorted
                        .into_iter()
                        .find(|&(task, finding)| {
                            matches!(finding, SegmentResult::Value(v) if !v.is_nan())
                                && !promoted.contains(&(task, rung))
                                && rung + 1 < case.tasks[task].rungs.len()
                        })
                        .map(|(task, _)| (task, rung + 1))
                });
            }
            if let Some((task, rung)) = choice {
                promoted.insert((task, rung - 1));
            } else if next < case.tasks.len() {
                choice = Some((next, 0));
                next += 1;
            }
            let Some((task, rung)) = choice else { continue };
            let rungs = &case.tasks[task].rungs;
            let from = if rung == 0 { 0 } else { rungs[rung - 1] };
            let segment = TrainingSegment { task, rung, until: rungs[rung] };
            order.push(segment);
            busy.push((now + (rungs[rung] - from) as f64 * case.tasks[task].step_cost, worker, segment));
        }
        busy.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        if busy.is_empty() {
            return order;
        }
        let (end, _, segment) = busy.remove(0);
        now = end;
        known[segment.rung].push((segment.task, case.results[&(segment.task, segment.rung)]));
    }
}

#[test]
fn real_timing_never_changes_a_decision() {
    let mut dice = Dice::new(1);
    let mut promotions = 0;
    for number in 0..300 {
        let case = case(&mut dice);
        let expected = plain(&case);
        promotions += expected.iter().filter(|s| s.rung > 0).count();
        for _ in 0..3 {
            let mut known: HashMap<(usize, usize), SegmentResult> = HashMap::new();
            let mut running: Vec<TrainingSegment> = Vec::new();
            loop {
                let now = decide(&case.tasks, case.workers, case.rule, &|task, rung| known.get(&(task, rung)).copied());
                assert!(now.due.len() <= case.workers, "case {number}: {now:?}");
                assert!(expected.starts_with(&now.order), "case {number}: {now:?}\n{expected:?}");
                // What was due stays due until it is found.
                assert!(running.iter().all(|s| now.due.contains(s)), "case {number}: {running:?} {now:?}");
                assert_eq!(now.is_finished, now.due.is_empty(), "case {number}");
                if now.is_finished {
                    assert_eq!(now.order, expected, "case {number}");
                    break;
                }
                running = now.due;
                // Any of them ends first; sometimes several before anybody asks.
                for _ in 0..=dice.below(running.len() as u64) {
                    let ended = running.swap_remove(dice.below(running.len() as u64) as usize);
                    known.insert((ended.task, ended.rung), case.results[&(ended.task, ended.rung)]);
                    if running.is_empty() {
                        break;
                    }
                }
            }
        }
        let first: Vec<usize> = expected.iter().filter(|s| s.rung == 0).map(|s| s.task).collect();
        assert_eq!(first, (0..case.tasks.len()).collect::<Vec<_>>(), "every task starts once, in order");
        let distinct: HashSet<&TrainingSegment> = expected.iter().collect();
        assert_eq!(distinct.len(), expected.len(), "no segment twice");
        for segment in expected.iter().filter(|s| s.rung > 0) {
            let below = expected.iter().position(|s| s.task == segment.task && s.rung + 1 == segment.rung);
            let at = expected.iter().position(|s| s == segment);
            assert!(below < at, "{segment:?} before the rung below");
        }
    }
    assert!(promotions > 500, "the cases show promotions: {promotions}");
}

/// A rung promotes at its end at least the tasks that synchronous halving would promote: the top part of all.
#[test]
fn the_top_of_all_results_is_promoted_in_the_end() {
    let mut dice = Dice::new(2);
    for _ in 0..100 {
        let case = case(&mut dice);
        let order = plain(&case);
        let all = decide(&case.tasks, case.workers, case.rule, &|t, r| case.results.get(&(t, r)).copied());
        assert_eq!(all.order, order);
        for rung in 0..3 {
            let mut ranks: Vec<RankedTask> = order
                .iter()
                .filter(|s| s.rung == rung)
                .map(|s| RankedTask::new(case.rule.goal, case.results[&(s.task, rung)], s.task))
                .collect();
            ranks.sort_by(RankedTask::order);
            let top = ranks.len() / case.rule.reduction.unwrap() as usize;
            for rank in ranks.iter().take(top).filter(|r| !r.is_bad && rung + 1 < case.tasks[r.task].rungs.len()) {
                assert!(order.iter().any(|s| s.task == rank.task && s.rung == rung + 1));
            }
        }
    }
}

/// Ten thousand tasks are decided without a noticeable delay: the lists are kept sorted, not sorted each time.
#[test]
fn a_large_sweep_ends() {
    let tasks = unit(10_000, &[1, 3, 9, 27]);
    let mut dice = Dice::new(3);
    let values: Vec<f64> = (0..10_000).map(|_| dice.below(1_000_000) as f64).collect();
    let all = decide(&tasks, 8, HALVE_BY_THREE, &|task, rung| Some(SegmentResult::Value(values[task] - rung as f64)));
    assert!(all.is_finished);
    let steps: u64 =
        all.order.iter().map(|s| s.until - if s.rung == 0 { 0 } else { 3_u64.pow(s.rung as u32 - 1) }).sum();
    assert_eq!(all.order.iter().filter(|s| s.rung == 0).count(), 10_000);
    assert!(steps < 10_000 * 27 / 4, "{steps}");
}
