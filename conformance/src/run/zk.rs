//! What the independent client does and sees.

use std::time::{Duration, Instant};

use forelock_testkit::Observer;
use forelock_testkit::proxy::{What, boot_time_ns};

use super::Play;
use super::steps::Came;
use crate::protocol::Line;
use crate::scenario::{Expectation, ZkVerb};

/// For how long a node may outlive the end of its agent.
const GONE_PATIENCE: Duration = Duration::from_secs(3);

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

impl Play<'_> {
    pub(super) fn zk(&mut self, verb: &ZkVerb, expect: Option<&Expectation>, patience: Duration) -> Came {
        let at = boot_time_ns();
        self.note("zk", "zk", None, at);
        let wanted = |count: usize| expect.is_none_or(|expect| expect.any_of.contains(&count.to_string()));
        let observer = &self.observer;
        let result = match verb {
            ZkVerb::DeleteNode { path, of } => {
                observer.delete(&self.node_of(of, path)?).map_err(text)?;
                "ok".to_owned()
            }
            ZkVerb::DeleteTree(path) => {
                self.delete_root(&self.on_server(path))?;
                "ok".to_owned()
            }
            ZkVerb::Create(path) => {
                observer.ensure(&self.on_server(path)).map_err(text)?;
                "ok".to_owned()
            }
            ZkVerb::SetData { path, of, data } => {
                observer.set(&self.node_of(of, path)?, data.as_bytes()).map_err(text)?;
                "ok".to_owned()
            }
            ZkVerb::EndSession(actor) => {
                let session = self.session(actor)?;
                let password = self.password(actor, session)?;
                let proxy = &self.player(actor)?.proxy;
                // Or the client would take its session back before it is ended.
                proxy.refuse();
                let ended = Observer::end_session(self.lease.server.client_addr(), session, &password);
                proxy.accept().map_err(text)?;
                ended.map_err(text)?;
                "ok".to_owned()
            }
            ZkVerb::Counter { path, next } => {
                self.lease.server.force_child_counter(&self.on_server(path), *next).map_err(text)?;
                "ok".to_owned()
            }
            ZkVerb::Children(path) => {
                let path = self.on_server(path);
                let counted =
                    observer.wait_until_children(&path, patience, |children| wanted(children.len()));
                counted.map_err(text)?.len().to_string()
            }
            ZkVerb::Watches(path) => self.count_watches(&self.on_server(path), patience, wanted)?.to_string(),
            ZkVerb::Gone { path, of } => {
                observer.wait_gone(&self.node_of(of, path)?, patience).map_err(text)?;
                "ok".to_owned()
            }
            ZkVerb::Exists(path) => {
                let wanted = expect.is_none_or(|expect| expect.any_of.iter().any(|text| text == "true"));
                let waited =
                    observer.wait_stat(&self.on_server(path), patience, |stat| stat.is_some() == wanted);
                waited.map_err(text)?.is_some().to_string()
            }
            ZkVerb::DataContains { path, of, text: wanted } => {
                let (data, _) = observer.get(&self.node_of(of, path)?).map_err(text)?;
                let data = String::from_utf8_lossy(&data).into_owned();
                if !data.contains(wanted) {
                    return Err(format!("the data is {data}"));
                }
                "ok".to_owned()
            }
        };
        Ok((result, None))
    }

    /// Removes a root. A waiter may be quick to enter it again, and then it is removed again.
    fn delete_root(&self, path: &str) -> Result<(), String> {
        let Some(before) = self.observer.stat(path).map_err(text)? else { return Ok(()) };
        loop {
            let tried = self.observer.delete_tree(path);
            // The root that was to go has gone, whether or not another has come already.
            match self.observer.stat(path).map_err(text)? {
                Some(now) if now.czxid == before.czxid => tried.or_else(|error| match error.code() {
                    Some(forelock_testkit::wire::code::NOT_EMPTY) => Ok(()),
                    _ => Err(error.to_string()),
                })?,
                _ => return Ok(()),
            }
        }
    }

    /// An actor's session, as it was told last.
    pub(super) fn session(&self, actor: &str) -> Result<i64, String> {
        let told = |line: &Line| line.session;
        let session = self.player(actor)?.actor.look(|inbox| inbox.events("state").filter_map(told).last());
        session.ok_or_else(|| format!("{actor} was told of no session"))
    }

    /// The password of a session, as the proxy saw it.
    fn password(&self, actor: &str, of: i64) -> Result<Vec<u8>, String> {
        let entries = self.player(actor)?.proxy.journal().all();
        let password = entries.iter().find_map(|entry| match &entry.what {
            What::Connected { session, password, .. } if *session == of => Some(password.clone()),
            _ => None,
        });
        password.ok_or_else(|| format!("the proxy of {actor} saw no session {of:#x}"))
    }

    fn count_watches(
        &self,
        path: &str,
        patience: Duration,
        wanted: impl Fn(usize) -> bool,
    ) -> Result<usize, String> {
        let below = format!("{path}/");
        let deadline = Instant::now() + patience;
        loop {
            let watches = self.lease.server.watches_by_path().map_err(text)?;
            let here = watches.iter().filter(|(watched, _)| *watched == path || watched.starts_with(&below));
            let count = here.map(|(_, sessions)| sessions.len()).sum();
            if wanted(count) || Instant::now() > deadline {
                return Ok(count);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Once all agents have ended in order, no lock node is left.
    pub(super) fn check_nothing_left(&self) -> Result<(), String> {
        let below = format!("{}/", self.root);
        let ended = boot_time_ns();
        loop {
            let all = self.lease.server.ephemerals().map_err(text)?;
            let left: Vec<&String> = all.values().flatten().filter(|path| path.starts_with(&below)).collect();
            if left.is_empty() {
                return Ok(());
            }
            let now = boot_time_ns();
            let allowed = GONE_PATIENCE + self.stage.lateness.between(ended, now);
            if Duration::from_nanos(now - ended) > allowed {
                return Err(format!("left behind: {left:?}"));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}
