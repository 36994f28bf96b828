//! Runs the matrix, prints a table of scenarios and agents, and writes the report.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use forelock_conformance::matrix::{Cell, MIXED};
use forelock_conformance::report::{self, Outcome, Result as CellResult};
use forelock_conformance::run::Stage;
use forelock_conformance::setup::Setup;

const USAGE: &str = "usage: forelock-conformance [OPTIONS] [FILTER]...

Plays the cells whose name contains one of the filters (all if there is none).

  --python PATH      the Python interpreter that has forelock and kazoo (as --set python=PATH)
  --set NAME=VALUE   a value for the agents' command lines
  --agents A,B       only these of our agents, and mixtures of them
  --report PATH      writes the report as JSON, and what failed beside it
  --jobs N           so many cells at a time (8)
  --list             prints the names of the cells and plays none";

struct Options {
    setup: Setup,
    filters: Vec<String>,
    report: Option<PathBuf>,
    jobs: usize,
    list: bool,
}

fn options() -> Result<Options, String> {
    let mut options =
        Options { setup: Setup::here()?, filters: Vec::new(), report: None, jobs: 8, list: false };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} wants a value\n\n{USAGE}"));
        match word.as_str() {
            "--python" => options.setup.settings.set("python", value()?),
            "--set" => {
                let pair = value()?;
                let (name, value) = pair.split_once('=').ok_or("--set wants NAME=VALUE")?;
                options.setup.settings.set(name, value);
            }
            "--agents" => options.setup.only = Some(value()?.split(',').map(str::to_owned).collect()),
            "--report" => options.report = Some(PathBuf::from(value()?)),
            "--jobs" => options.jobs = value()?.parse().map_err(|_| "--jobs wants a number")?,
            "--list" => options.list = true,
            "--help" | "-h" => return Err(USAGE.to_owned()),
            flag if flag.starts_with("--") => return Err(format!("no such option: {flag}\n\n{USAGE}")),
            _ => options.filters.push(word),
        }
    }
    Ok(options)
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Result<bool, String> {
    let Options { setup, filters, report, jobs, list } = options()?;
    let mut cells = setup.cells()?;
    cells.retain(|cell| {
        filters.is_empty() || filters.iter().any(|filter| cell.name().contains(filter.as_str()))
    });
    if list {
        cells.iter().for_each(|cell| println!("{}", cell.name()));
        return Ok(true);
    }
    if cells.is_empty() {
        return Err("no cell fits the filters".to_owned());
    }
    let began = Instant::now();
    let stage = Stage::new(setup.settings);
    let results = play(&stage, &cells, jobs.max(1));
    let count = |word: &str| results.iter().filter(|result| result.outcome.as_str() == word).count();
    println!(
        "\n{} passed, {} failed, {} skipped in {:.0} s",
        count("passed"),
        count("failed"),
        count("skipped"),
        began.elapsed().as_secs_f64()
    );
    tell_skipped(&results);
    tell_failed(&results);
    if let Some(path) = report {
        write_report(&path, &results).map_err(|error| format!("{}: {error}", path.display()))?;
        println!("report: {}", path.display());
    }
    Ok(count("failed") == 0)
}

/// Plays all cells, several at a time, and prints a row whenever all cells of a scenario are done.
fn play(stage: &Stage, cells: &[Cell], jobs: usize) -> Vec<CellResult> {
    let mut table = Table::new(cells);
    let next = AtomicUsize::new(0);
    let (done, results) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..jobs.min(cells.len()) {
            let done = done.clone();
            let next = &next;
            scope.spawn(move || {
                while let Some(cell) = cells.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let (outcome, took) = stage.play(cell);
                    let _ = done.send(CellResult { cell: cell.clone(), outcome, took });
                }
            });
        }
        drop(done);
        results.into_iter().inspect(|result| table.add(result)).collect()
    })
}

/// A row: a scenario, and the version of its server.
type Row = (String, &'static str);
/// A column's cells in a row: how each ended, and how long it took.
type Marks = Vec<(&'static str, Duration)>;

/// The table: a row for each scenario and server, a column for each agent and one for the mixtures.
struct Table {
    columns: Vec<String>,
    width: usize,
    /// How many cells of a row are not done yet.
    missing: BTreeMap<Row, usize>,
    marks: BTreeMap<Row, BTreeMap<String, Marks>>,
}

impl Table {
    fn new(cells: &[Cell]) -> Self {
        let mut table =
            Self { columns: Vec::new(), width: 0, missing: BTreeMap::new(), marks: BTreeMap::new() };
        for cell in cells {
            if !table.columns.contains(&cell.column) {
                table.columns.push(cell.column.clone());
            }
            table.width = table.width.max(cell.scenario.name.chars().count());
            *table.missing.entry(Self::key(cell)).or_default() += 1;
        }
        // The mixtures come last, whatever the first scenario is.
        table.columns.sort_by_key(|column| column == MIXED);
        table.row("scenario", "server", table.columns.iter().cloned());
        table
    }

    fn key(cell: &Cell) -> Row {
        (cell.scenario.name.clone(), cell.version.as_str())
    }

    fn add(&mut self, result: &CellResult) {
        let key = Self::key(&result.cell);
        let marks = self.marks.entry(key.clone()).or_default();
        marks.entry(result.cell.column.clone()).or_default().push((result.outcome.as_str(), result.took));
        let Some(missing) = self.missing.get_mut(&key) else { return };
        *missing -= 1;
        if *missing == 0
            && let Some(marks) = self.marks.remove(&key)
        {
            let shown = self
                .columns
                .iter()
                .map(|column| marks.get(column).map_or(String::new(), |cells| show(cells)));
            self.row(&key.0, key.1, shown);
        }
    }

    fn row(&self, name: &str, server: &str, cells: impl Iterator<Item = String>) {
        let cells: Vec<String> = cells.map(|cell| format!("{cell:<12}")).collect();
        println!("{name:<width$}  {server:<6}  {}", cells.concat().trim_end(), width = self.width);
        let _ = std::io::stdout().flush();
    }
}

fn show(cells: &[(&'static str, Duration)]) -> String {
    let of = |word: &str| cells.iter().filter(|(outcome, _)| *outcome == word).count();
    let seconds = cells.iter().map(|(_, took)| took.as_secs_f64()).fold(0.0, f64::max);
    let many = cells.len() > 1;
    match (of("passed"), of("failed"), of("skipped")) {
        (_, failed @ 1.., _) if many => format!("FAILED {failed}/{}", cells.len()),
        (_, 1.., _) => format!("FAILED {seconds:.1}"),
        (0, 0, _) => "skipped".to_owned(),
        (passed, 0, _) if many => format!("ok {passed}/{} {seconds:.1}", cells.len()),
        _ => format!("ok {seconds:.1}"),
    }
}

fn tell_skipped(results: &[CellResult]) {
    let mut reasons = BTreeMap::<&str, Vec<String>>::new();
    for result in results {
        if let Outcome::Skipped(why) = &result.outcome {
            let cell = &result.cell;
            reasons.entry(why).or_default().push(format!("{} [{}]", cell.scenario.name, cell.agents()));
        }
    }
    for (why, cells) in reasons {
        println!("\nskipped, because {why}:");
        cells.iter().for_each(|cell| println!("  {cell}"));
    }
}

fn tell_failed(results: &[CellResult]) {
    for result in results {
        if let Outcome::Failed(why) = &result.outcome {
            println!("\n==== FAILED: {} ====\n{why}", result.cell.name());
        }
    }
}

fn write_report(path: &Path, results: &[CellResult]) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let json = report::json(results).map_err(std::io::Error::other)?;
    std::fs::write(path, json + "\n")
}
