//! How often the rule of sweeps is wrong, and how often it finds the best setting: `cargo bench -p runner-stats --bench decisions`.

#![allow(clippy::print_stdout, reason = "a bench prints its tables")]

mod simulated;

use runner_spec::philox::Philox;
use simulated::{Case, Noise, RULE, cases_without_best};

const TRIALS: u64 = 20_000;

fn main() {
    println!("Wrong claims in {TRIALS} sweeps of settings of which two or more are equally good, in percent:");
    println!("{:<32} {:>5} {:>6} {:>6}", "settings", "seeds", "best", "worse");
    for case in cases_without_best() {
        let claims = case.claims(Philox::new(52, case.name), TRIALS, &RULE);
        println!(
            "{:<32} {:>5} {:>6.1} {:>6.1}",
            case.name,
            case.seeds,
            100.0 * claims.wrong_best,
            100.0 * claims.wrong_worse
        );
    }
    println!("\nThe best setting found among 8, whose 7 rivals are worse by so many standard deviations, in percent:");
    println!("{:<32} {:>5} {:>6}", "gap", "seeds", "best");
    for gap in [1.0, 2.0, 3.0] {
        for seeds in [3, 5, 8] {
            let settings = (0..8).map(|i| (if i == 0 { 0.0 } else { gap }, 1.0, Noise::Normal)).collect();
            let case = Case { name: "gap", settings, seeds, correlation: 0.0 };
            let claims = case.claims(Philox::new(53, "gap"), TRIALS, &RULE);
            println!("{gap:<32} {seeds:>5} {:>6.1}", 100.0 * claims.right_best);
        }
    }
}
