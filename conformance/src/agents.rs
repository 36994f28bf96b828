//! Agents: programs that play actors, each described in a small file.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use serde::Deserialize;

/// What an agent is: an `.agent.toml` file in `conformance/agents`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Agent {
    /// Its name, as scenarios and reports write it.
    pub name: String,
    /// One of ours, which plays every scenario, or a peer, which plays where a scenario asks for it.
    pub role: Role,
    /// The command line. `{name}` stands for a [`Settings`] value.
    pub command: Vec<String>,
    /// What scenarios may `needs`.
    #[serde(default)]
    pub capabilities: BTreeSet<String>,
    /// Why it lacks the capabilities that it lacks, by name: the reason of the cells that are skipped for it.
    #[serde(default)]
    pub lacks: BTreeMap<String, String>,
}

/// Whom an agent stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Forelock in some language.
    Binding,
    /// Another client.
    Peer,
}

/// Values for the command lines of agents, such as where Python is.
#[derive(Clone, Debug, Default)]
pub struct Settings(BTreeMap<String, String>);

impl Settings {
    /// Settings with `agents`, the folder of the agents' files.
    #[must_use]
    pub fn new(agents: &Path) -> Self {
        let mut settings = Self::default();
        settings.set("agents", agents.display().to_string());
        settings
    }

    /// Sets a value.
    pub fn set(&mut self, name: &str, value: impl Into<String>) {
        self.0.insert(name.to_owned(), value.into());
    }

    /// The value of `name`: as set, or of the environment variable `FORELOCK_CONFORMANCE_<NAME>`.
    fn get(&self, name: &str) -> Result<String, String> {
        let variable = format!("FORELOCK_CONFORMANCE_{}", name.to_ascii_uppercase());
        let value = self.0.get(name).cloned().or_else(|| std::env::var(&variable).ok());
        value.ok_or_else(|| {
            format!("its command needs {{{name}}}: give it with `--set {name}=…` or in {variable}")
        })
    }

    fn fill(&self, text: &str) -> Result<String, String> {
        let mut filled = String::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('{') {
            let (name, after) = after.split_once('}').ok_or_else(|| format!("`{text}` lacks a `}}`"))?;
            filled.push_str(before);
            filled.push_str(&self.get(name)?);
            rest = after;
        }
        Ok(filled + rest)
    }
}

impl Agent {
    /// Reads every agent's file in a folder, ours in the order `rust python asyncio` and then by name, peers last.
    ///
    /// # Errors
    /// When a file can't be read or says something that no agent's file says.
    pub fn read_folder(folder: &Path) -> Result<Vec<Self>, String> {
        let mut agents = Vec::new();
        for entry in fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?.flatten()
        {
            let path = entry.path();
            if entry.file_name().to_string_lossy().ends_with(".agent.toml") {
                let wrong = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
                let text = fs::read_to_string(&path).map_err(|error| wrong(&error))?;
                agents.push(toml::from_str::<Self>(&text).map_err(|error| wrong(&error))?);
            }
        }
        let rank = |agent: &Self| {
            let known = ["rust", "python", "asyncio"].iter().position(|name| *name == agent.name);
            (agent.role == Role::Peer, known.unwrap_or(usize::MAX))
        };
        agents.sort_by(|a, b| rank(a).cmp(&rank(b)).then_with(|| a.name.cmp(&b.name)));
        Ok(agents)
    }

    /// Why it can't do what is needed, if it can't.
    #[must_use]
    pub fn cannot(&self, needs: &BTreeSet<String>) -> Option<String> {
        let missing = needs.iter().find(|need| !self.capabilities.contains(*need))?;
        let why = self.lacks.get(missing);
        Some(why.map_or_else(|| format!("{} lacks {missing} and does not say why", self.name), Clone::clone))
    }

    /// Whether the file says why it lacks each of `capabilities` that it lacks.
    ///
    /// # Errors
    /// Names the first that it says nothing about.
    pub fn explains(&self, capabilities: &BTreeSet<String>) -> Result<(), String> {
        let silent = |need: &&String| !self.capabilities.contains(*need) && !self.lacks.contains_key(*need);
        match capabilities.iter().find(silent) {
            Some(need) => Err(format!(
                "the agent {} neither has the capability `{need}` nor says in `[lacks]` why not",
                self.name
            )),
            None => Ok(()),
        }
    }

    /// The command that starts it.
    ///
    /// # Errors
    /// When a setting is missing.
    pub fn command(&self, settings: &Settings) -> Result<Command, String> {
        let words: Vec<String> = self
            .command
            .iter()
            .map(|word| {
                settings.fill(word).map_err(|why| format!("the agent {} can't start: {why}", self.name))
            })
            .collect::<Result<_, _>>()?;
        let (program, args) = words.split_first().ok_or_else(|| format!("{} has no command", self.name))?;
        let mut command = Command::new(program);
        command.args(args);
        Ok(command)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_filled_in_and_say_what_is_missing() {
        let agent: Agent = toml::from_str(
            "name = 'x'\nrole = 'binding'\ncommand = ['{interpreter}', '{agents}/x.py']\ncapabilities = ['fork']\n\
             [lacks]\ninterrupt = 'no terminal'",
        )
        .expect("an agent");
        let mut settings = Settings::new(Path::new("/agents"));
        let error = agent.command(&settings).expect_err("no interpreter");
        assert!(
            error.contains("--set interpreter=") && error.contains("FORELOCK_CONFORMANCE_INTERPRETER"),
            "{error}"
        );
        settings.set("interpreter", "/bin/x");
        let command = agent.command(&settings).expect("a command");
        assert_eq!(command.get_program(), "/bin/x");
        assert_eq!(command.get_args().next(), Some(std::ffi::OsStr::new("/agents/x.py")));

        let needs = |text: &str| BTreeSet::from([text.to_owned()]);
        assert_eq!(agent.cannot(&needs("fork")), None);
        assert_eq!(agent.cannot(&needs("interrupt")).as_deref(), Some("no terminal"));
        agent.explains(&needs("interrupt")).expect("explained");
        agent.explains(&needs("block")).expect_err("not explained");
    }
}
