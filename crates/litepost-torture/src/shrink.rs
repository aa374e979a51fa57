//! Finds a shorter plan that still fails (delta debugging).
//!
//! Called after a failure. Invariant: what is returned has failed itself; the search ends when its tries are used up.

use crate::plan::{Fault, Plan};

/// The shortest plan found that `fails`, with at most `tries` attempts. A plan without the faults that matter not.
pub fn shortest<E>(plan: &Plan, mut tries: usize, mut fails: impl FnMut(&Plan) -> Result<bool, E>) -> Result<Plan, E> {
    let mut best = plan.clone();
    let mut pieces = 2;
    while best.faults.len() > 1 && pieces <= best.faults.len() {
        let size = best.faults.len().div_ceil(pieces);
        let mut shorter = None;
        for at in (0..best.faults.len()).step_by(size) {
            if tries == 0 {
                return Ok(best);
            }
            tries -= 1;
            let rest = best.faults.iter().enumerate().filter(|(i, _)| !(at..at + size).contains(i));
            let faults: Vec<Fault> = rest.map(|(_, fault)| fault.clone()).collect();
            let candidate = Plan { faults, ..best.clone() };
            if fails(&candidate)? {
                shorter = Some(candidate);
                break;
            }
        }
        match shorter {
            Some(candidate) => {
                best = candidate;
                pieces = 2.max(pieces - 1);
            }
            None if size == 1 => break,
            None => pieces = (pieces * 2).min(best.faults.len()),
        }
    }
    Ok(best)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Deed, Reach};

    #[test]
    fn only_the_faults_that_matter_are_left() {
        let plan = Plan::new(1, 2, 2, 60_000, Reach::default());
        let matter = [plan.faults[5].clone(), plan.faults[40].clone()];
        let fails = |plan: &Plan| Ok::<_, ()>(matter.iter().all(|fault| plan.faults.contains(fault)));
        assert_eq!(shortest(&plan, 1_000, fails).unwrap().faults, matter);
        let first = shortest(&plan, 1, fails).unwrap();
        assert!(fails(&first).unwrap(), "the search may end early, with a plan that fails");
        let one = Plan { faults: vec![Fault { at_ms: 1, deed: Deed::LockOutbox { ms: 1 } }], ..plan };
        assert_eq!(shortest(&one, 10, |_| Ok::<_, ()>(true)).unwrap(), one);
    }
}
