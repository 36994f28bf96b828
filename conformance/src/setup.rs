//! What the test target and the program have in common: where everything is, and which cells there are.

use std::path::Path;
use std::sync::Arc;

use crate::agents::{Agent, Role, Settings};
use crate::matrix::{self, Cell};
use crate::scenario;

/// Where the agents and the scenarios are, and who plays.
pub struct Setup {
    /// Values for the agents' command lines.
    pub settings: Settings,
    /// Only these of our agents, if not all.
    pub only: Option<Vec<String>>,
}

impl Setup {
    /// The agents and scenarios of this crate, and the Rust agent beside the running program.
    ///
    /// # Errors
    /// When the running program can't be found.
    pub fn here() -> Result<Self, String> {
        let mut settings = Settings::new(&Path::new(env!("CARGO_MANIFEST_DIR")).join("agents"));
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        // Test targets lie in `deps`, one below the programs.
        let folder =
            program.ancestors().skip(1).find(|folder| !folder.ends_with("deps")).unwrap_or(Path::new("."));
        settings.set("rust_agent", folder.join("forelock-agent-rust").display().to_string());
        Ok(Self { settings, only: None })
    }

    /// All cells.
    ///
    /// # Errors
    /// A mistake in a scenario or in an agent's file.
    pub fn cells(&self) -> Result<Vec<Cell>, String> {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut agents = Agent::read_folder(&here.join("agents"))?;
        if let Some(only) = &self.only {
            if let Some(nobody) = only.iter().find(|name| !agents.iter().any(|agent| agent.name == **name)) {
                return Err(format!("no agent is called {nobody}"));
            }
            agents.retain(|agent| agent.role == Role::Peer || only.contains(&agent.name));
        }
        let scenarios = scenario::read_folder(&here.join("scenarios")).map_err(|error| error.to_string())?;
        let scenarios: Vec<_> = scenarios
            .into_iter()
            .map(|mut scenario| {
                // Reports name files as anyone finds them, not as they lie on this machine.
                if let Some(inside) = here.parent().and_then(|root| scenario.file.strip_prefix(root).ok()) {
                    scenario.file = inside.to_owned();
                }
                Arc::new(scenario)
            })
            .collect();
        matrix::cells(&scenarios, &agents)
    }
}
