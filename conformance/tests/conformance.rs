//! The matrix as ordinary test cases: `cargo test -p forelock-conformance --test conformance -- 'fault 12'`.
//!
//! Python comes from FORELOCK_CONFORMANCE_PYTHON, and without it the cells of Python fail and say so.

use std::process::ExitCode;
use std::sync::Arc;

use forelock_conformance::matrix::Cell;
use forelock_conformance::report::Outcome;
use forelock_conformance::run::Stage;
use forelock_conformance::setup::Setup;
use libtest_mimic::{Arguments, Trial};

/// Cells mostly wait, so more of them than there are processors go on at a time.
const AT_A_TIME: usize = 8;

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(AT_A_TIME);
    let mut setup = match Setup::here() {
        Ok(setup) => setup,
        Err(why) => return fail(&why),
    };
    // Where Cargo says that it is: it may not have been built into the usual place.
    setup.settings.set("rust_agent", env!("CARGO_BIN_EXE_forelock-agent-rust"));
    let cells = match setup.cells() {
        Ok(cells) => cells,
        Err(why) => return fail(&why),
    };
    let stage = Arc::new(Stage::new(setup.settings));
    let trials = cells.into_iter().map(|cell| trial(&stage, cell)).collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn fail(why: &str) -> ExitCode {
    eprintln!("{why}");
    ExitCode::FAILURE
}

fn trial(stage: &Arc<Stage>, cell: Cell) -> Trial {
    let stage = stage.clone();
    let (name, skip) = (cell.name(), cell.skip.clone());
    let kind = skip.as_ref().map_or_else(String::new, |why| format!("skipped: {why}"));
    let play = move || match stage.play(&cell) {
        (Outcome::Failed(why), _) => Err(why.into()),
        _ => Ok(()),
    };
    Trial::test(name, play).with_kind(kind).with_ignored_flag(skip.is_some())
}
