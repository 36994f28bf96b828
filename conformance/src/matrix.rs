//! The matrix: each scenario with each cast of agents is a cell.

use std::collections::BTreeMap;
use std::sync::Arc;

use forelock_testkit::Version;

use crate::agents::{Agent, Role};
use crate::scenario::Scenario;

/// One scenario with one cast.
#[derive(Clone)]
pub struct Cell {
    /// What is played.
    pub scenario: Arc<Scenario>,
    /// On which server.
    pub version: Version,
    /// Which agent plays whom.
    pub cast: BTreeMap<String, Arc<Agent>>,
    /// Where the table shows it: an agent's name, or `mixed`.
    pub column: String,
    /// Why it is not played, if it is not.
    pub skip: Option<String>,
}

/// The column of mixtures.
pub const MIXED: &str = "mixed";

impl Cell {
    /// The cast, as reports show it: one agent's name if it plays everyone, or `a=rust b=python`.
    #[must_use]
    pub fn agents(&self) -> String {
        let players: Vec<&str> = self.scenario.cast().map(|actor| self.cast[actor].name.as_str()).collect();
        let same = players.iter().all(|player| *player == players[0]);
        if same && self.scenario.peers.is_empty() {
            return players[0].to_owned();
        }
        let each = self.scenario.actors.iter().map(|actor| format!("{actor}={}", self.cast[actor].name));
        each.collect::<Vec<_>>().join(" ")
    }

    /// The name of the cell, for filters: scenario, cast, and the server's version.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{} [{}] on {}", self.scenario.name, self.agents(), self.version)
    }
}

/// All cells: every scenario, in every version that it names, by each of our agents alone and in rotation.
///
/// # Errors
/// When a scenario wants an agent that there is not, or an agent does not explain a capability that it lacks.
pub fn cells(scenarios: &[Arc<Scenario>], agents: &[Agent]) -> Result<Vec<Cell>, String> {
    let agents: Vec<Arc<Agent>> = agents.iter().cloned().map(Arc::new).collect();
    let ours: Vec<&Arc<Agent>> = agents.iter().filter(|agent| agent.role == Role::Binding).collect();
    let mut cells = Vec::new();
    for scenario in scenarios {
        let wrong = |what: String| format!("{}:{}: {what}", scenario.file.display(), scenario.line);
        for agent in &ours {
            agent.explains(&scenario.needs).map_err(wrong)?;
        }
        if let Some(nobody) =
            scenario.skips.keys().find(|name| !agents.iter().any(|agent| agent.name == **name))
        {
            // It may be left out of this run; but a name that nobody has is a slip of the pen.
            if agents.iter().filter(|agent| agent.role == Role::Binding).count() > 2 {
                return Err(wrong(format!("`skip {nobody}`: no agent is called so")));
            }
        }
        let peer = |name: &String| {
            agents
                .iter()
                .find(|agent| agent.name == *name)
                .cloned()
                .ok_or_else(|| format!("no agent is called {name}"))
        };
        let peers: BTreeMap<String, Arc<Agent>> = scenario
            .peers
            .iter()
            .map(|(actor, name)| Ok((actor.clone(), peer(name).map_err(wrong)?)))
            .collect::<Result<_, String>>()?;
        let rotation = |shift: usize, step: usize| {
            let mut cast = peers.clone();
            for (place, actor) in scenario.cast().enumerate() {
                cast.insert(actor.to_owned(), ours[(place * step + shift) % ours.len()].clone());
            }
            cast
        };
        let mut casts: Vec<(String, BTreeMap<String, Arc<Agent>>)> =
            (0..ours.len()).map(|shift| (ours[shift].name.clone(), rotation(shift, 0))).collect();
        if scenario.mixed && scenario.cast().count() > 1 && ours.len() > 1 {
            casts.extend((0..ours.len()).map(|shift| (MIXED.to_owned(), rotation(shift, 1))));
        }
        for version in &scenario.versions {
            for (column, cast) in &casts {
                let skip = cast.iter().find_map(|(actor, agent)| cannot_play(scenario, actor, agent));
                cells.push(Cell {
                    scenario: scenario.clone(),
                    version: *version,
                    cast: cast.clone(),
                    column: column.clone(),
                    skip,
                });
            }
        }
    }
    Ok(cells)
}

fn cannot_play(scenario: &Scenario, actor: &str, agent: &Agent) -> Option<String> {
    if scenario.peers.contains_key(actor) {
        return None;
    }
    scenario.skips.get(&agent.name).cloned().or_else(|| agent.cannot(&scenario.needs))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn agent(name: &str, role: &str, rest: &str) -> Agent {
        toml::from_str(&format!("name = '{name}'\nrole = '{role}'\ncommand = ['x']\n{rest}"))
            .expect("an agent")
    }

    fn matrix(text: &str) -> Vec<(String, String, Option<String>)> {
        let agents = [
            agent("rust", "binding", "[lacks]\nfork = 'no fork in Rust'"),
            agent("python", "binding", "capabilities = ['fork']"),
            agent("kazoo", "peer", ""),
        ];
        let scenarios = crate::scenario::parse(Path::new("x"), text).expect("scenarios");
        let scenarios: Vec<_> = scenarios.into_iter().map(Arc::new).collect();
        let cells = cells(&scenarios, &agents).expect("cells");
        cells.into_iter().map(|cell| (cell.agents(), cell.column, cell.skip)).collect()
    }

    #[test]
    fn everyone_alone_and_in_rotation() {
        let cells = matrix("scenario x\n a connect\n b connect");
        let casts: Vec<_> = cells.iter().map(|(cast, column, _)| (cast.as_str(), column.as_str())).collect();
        assert_eq!(
            casts,
            [
                ("rust", "rust"),
                ("python", "python"),
                ("a=rust b=python", "mixed"),
                ("a=python b=rust", "mixed")
            ]
        );
    }

    #[test]
    fn a_peer_stays_and_the_others_change() {
        let cells = matrix("scenario x\n peer k kazoo\n k connect\n b connect");
        let casts: Vec<_> = cells.iter().map(|(cast, ..)| cast.as_str()).collect();
        assert_eq!(casts, ["k=kazoo b=rust", "k=kazoo b=python"]);
    }

    #[test]
    fn what_an_agent_cannot_play_is_skipped_with_its_reason() {
        let cells = matrix("scenario x\n needs fork\n a connect");
        assert_eq!(cells[0].2.as_deref(), Some("no fork in Rust"));
        assert_eq!(cells[1].2, None);
        let cells = matrix("scenario x\n skip python: because\n a connect\n b connect");
        assert_eq!(cells.iter().filter(|(.., skip)| skip.as_deref() == Some("because")).count(), 3);
    }
}
