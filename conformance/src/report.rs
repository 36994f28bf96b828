//! What came of the cells.

use std::time::Duration;

use serde::Serialize;

use crate::matrix::Cell;

/// How a cell ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All came as it should.
    Passed,
    /// Something did not; with everything that helps to see why.
    Failed(String),
    /// It was not played, and why.
    Skipped(String),
}

impl Outcome {
    /// The word for it in the report.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed(_) => "failed",
            Self::Skipped(_) => "skipped",
        }
    }
}

/// A cell and what came of it.
pub struct Result {
    /// The cell.
    pub cell: Cell,
    /// What came of it.
    pub outcome: Outcome,
    /// How long it took.
    pub took: Duration,
}

#[derive(Serialize)]
struct Row<'a> {
    scenario: &'a str,
    agents: String,
    server: &'static str,
    outcome: &'static str,
    seconds: f64,
    /// Why it failed, in a line, or why it was skipped.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
}

/// The report: an array of objects with `scenario`, `agents`, `outcome`, `seconds`, and more.
///
/// # Errors
/// Never, for what is reported here.
pub fn json(results: &[Result]) -> serde_json::Result<String> {
    let rows: Vec<Row<'_>> = results
        .iter()
        .map(|result| Row {
            scenario: &result.cell.scenario.name,
            agents: result.cell.agents(),
            server: result.cell.version.as_str(),
            outcome: result.outcome.as_str(),
            seconds: (result.took.as_secs_f64() * 1000.0).round() / 1000.0,
            reason: match &result.outcome {
                Outcome::Passed => None,
                Outcome::Failed(why) => why.lines().next(),
                Outcome::Skipped(why) => Some(why),
            },
        })
        .collect();
    serde_json::to_string_pretty(&rows)
}
