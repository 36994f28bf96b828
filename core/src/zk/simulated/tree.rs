//! The tree of nodes that one server holds, and the changes that a committed transaction makes to it.
//!
//! A write is *prepared* against the leader's tree, which turns it into [`Change`]s, and the changes are then
//! *applied* by every server. Nothing in here knows of time or of connections.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::Nanos;
use crate::zk::{Acl, CreateMode, Operation, Stat, WatchEvent, ZkError};

/// What a write asks for.
#[derive(Clone, Debug)]
pub(super) enum Write {
    /// One ordinary operation.
    One(Operation),
    /// All or nothing.
    Multi(Vec<Operation>),
    OpenSession {
        id: i64,
        timeout: Nanos,
    },
    CloseSession {
        id: i64,
    },
    /// Not a ZooKeeper operation: puts a node's child counter where a test wants it.
    ForceCounter {
        path: String,
        value: i32,
    },
}

/// What a committed transaction does to a tree: the same on every server.
#[derive(Clone, Debug)]
pub(super) enum Change {
    Create { path: Arc<str>, data: Vec<u8>, owner: i64, container: bool, counter: i32 },
    Delete { path: Arc<str> },
    SetData { path: Arc<str>, data: Vec<u8>, version: i32 },
    ForceCounter { path: Arc<str>, value: i32 },
    OpenSession { id: i64, timeout: Nanos },
    CloseSession { id: i64, deleted: Vec<Arc<str>> },
}

/// What the author of a write is answered, once the write is applied where it is connected.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Answer {
    Done,
    Created(Arc<str>),
    StatOf(Arc<str>),
}

/// Something that watches may have been waiting for.
#[derive(Clone, Debug)]
pub(super) struct Sighting {
    pub path: Arc<str>,
    pub event: WatchEvent,
    /// The transaction that had created the node, for a deletion.
    pub czxid: i64,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Node {
    pub data: Vec<u8>,
    pub czxid: i64,
    pub mzxid: i64,
    pub pzxid: i64,
    pub version: i32,
    /// Counts the creations of children. It is what sequential names are made of, and is not what a stat
    /// shows as `cversion`.
    pub counter: i32,
    pub owner: i64,
    pub ctime: i64,
    pub container: bool,
    pub children: BTreeSet<Box<str>>,
}

impl Node {
    pub fn stat(&self) -> Stat {
        let count = i32::try_from(self.children.len()).unwrap_or(i32::MAX);
        Stat {
            czxid: self.czxid,
            mzxid: self.mzxid,
            pzxid: self.pzxid,
            version: self.version,
            // Creations and deletions together, as the real server derives it from its counter.
            cversion: self.counter.wrapping_mul(2).wrapping_sub(count),
            ephemeral_owner: self.owner,
            data_length: i32::try_from(self.data.len()).unwrap_or(i32::MAX),
            num_children: count,
            ctime: self.ctime,
        }
    }
}

/// A parent's counter that has gone past 2^31-1 in transactions that are not committed yet.
///
/// The server computes the next number from its outstanding changes, where the counter wraps, but stores it only
/// when it is larger. So the wrapped numbers last as long as something is outstanding.
#[derive(Clone, Debug, Default)]
pub(super) struct Overflow {
    parent: Option<Arc<str>>,
    next: i32,
    until: Nanos,
}

/// When a write is prepared, by whom, and what is outstanding then.
pub(super) struct Preparing<'a> {
    pub session: i64,
    pub now: Nanos,
    /// How long a change counts as outstanding.
    pub outstanding: Nanos,
    pub overflow: &'a mut Overflow,
}

#[derive(Clone, Debug)]
pub(super) struct Tree {
    pub nodes: BTreeMap<Arc<str>, Node>,
    /// Session timeouts, by session.
    pub sessions: BTreeMap<i64, Nanos>,
}

impl Tree {
    pub fn new() -> Self {
        let mut nodes = BTreeMap::new();
        let root = Node { children: BTreeSet::from(["zookeeper".into()]), ..Node::default() };
        nodes.insert("/".into(), root);
        nodes.insert("/zookeeper".into(), Node::default());
        Self { nodes, sessions: BTreeMap::new() }
    }

    pub fn get(&self, path: &str) -> Option<&Node> {
        self.nodes.get(path)
    }

    /// Turns a write into changes, or says why it can't be.
    pub fn prepare(&self, write: Write, with: Preparing<'_>) -> Result<(Vec<Change>, Answer), ZkError> {
        match write {
            Write::One(operation) => {
                let (change, answer) = self.prepare_one(operation, with)?;
                Ok((change.into_iter().collect(), answer))
            }
            Write::Multi(operations) => {
                self.prepare_all(operations, with).map(|changes| (changes, Answer::Done))
            }
            Write::OpenSession { id, timeout } => {
                Ok((vec![Change::OpenSession { id, timeout }], Answer::Done))
            }
            Write::CloseSession { id } => {
                let of_session = self.nodes.iter().filter(|(_, node)| node.owner == id);
                let deleted = of_session.map(|(path, _)| path.clone()).collect();
                Ok((vec![Change::CloseSession { id, deleted }], Answer::Done))
            }
            Write::ForceCounter { path, value } => {
                if self.get(&path).is_none() {
                    return Err(ZkError::NoNode);
                }
                Ok((vec![Change::ForceCounter { path: path.into(), value }], Answer::Done))
            }
        }
    }

    fn prepare_all(&self, operations: Vec<Operation>, with: Preparing<'_>) -> Result<Vec<Change>, ZkError> {
        let Preparing { session, now, outstanding, overflow } = with;
        // A later operation sees what the earlier ones did, so they are tried on a copy; checks change nothing.
        let mut scratch = None;
        let mut changes = Vec::new();
        for operation in operations {
            let tree = scratch.as_ref().unwrap_or(self);
            let with = Preparing { session, now, outstanding, overflow };
            let (change, _) = tree.prepare_one(operation, with)?;
            if let Some(change) = change {
                scratch.get_or_insert_with(|| self.clone()).apply(&change, i64::MAX, 0, &mut Vec::new());
                changes.push(change);
            }
        }
        Ok(changes)
    }

    fn prepare_one(
        &self,
        operation: Operation,
        with: Preparing<'_>,
    ) -> Result<(Option<Change>, Answer), ZkError> {
        match operation {
            Operation::Check { path, version } => {
                self.node_at(&path, version)?;
                Ok((None, Answer::Done))
            }
            Operation::SetData { path, data, version } => {
                let node = self.node_at(&path, version)?;
                let path: Arc<str> = path.into();
                let version = node.version.wrapping_add(1);
                Ok((Some(Change::SetData { path: path.clone(), data, version }), Answer::StatOf(path)))
            }
            Operation::Delete { path, version } => {
                if path == "/" {
                    return Err(ZkError::BadArguments("the root can't be deleted".into()));
                }
                let node = self.node_at(&path, version)?;
                if !node.children.is_empty() {
                    return Err(ZkError::NotEmpty);
                }
                Ok((Some(Change::Delete { path: path.into() }), Answer::Done))
            }
            Operation::Create { path, data, mode, acl } => self.prepare_create(path, data, mode, &acl, with),
        }
    }

    fn prepare_create(
        &self,
        path: String,
        data: Vec<u8>,
        mode: CreateMode,
        acl: &Acl,
        with: Preparing<'_>,
    ) -> Result<(Option<Change>, Answer), ZkError> {
        let parent_path: Arc<str> = parent_of(&path).into();
        let parent = self.get(&parent_path).ok_or(ZkError::NoNode)?;
        match acl {
            Acl::Open => {}
            Acl::Entries(entries) if !entries.is_empty() && entries.iter().all(|e| e.scheme != "auth") => {}
            // Nobody ever shows credentials here, so an ACL that speaks of them can't be valid.
            Acl::Entries(_) | Acl::CreatorWritesAllRead => return Err(ZkError::InvalidAcl),
        }
        let Preparing { session, now, outstanding, overflow } = with;
        let wrapped = overflow.parent.as_ref() == Some(&parent_path) && now <= overflow.until;
        let number = if wrapped { overflow.next } else { parent.counter };
        let path: Arc<str> = match mode {
            CreateMode::EphemeralSequential => format!("{path}{number:010}").into(),
            _ => path.into(),
        };
        if self.nodes.contains_key(&path) {
            return Err(ZkError::NodeExists);
        }
        if parent.owner != 0 {
            return Err(ZkError::NoChildrenForEphemerals);
        }
        let counter = number.wrapping_add(1);
        if wrapped || number == i32::MAX {
            *overflow = Overflow { parent: Some(parent_path), next: counter, until: now + outstanding };
        }
        let owner = match mode {
            CreateMode::Ephemeral | CreateMode::EphemeralSequential => session,
            CreateMode::Persistent | CreateMode::Container => 0,
        };
        let container = mode == CreateMode::Container;
        Ok((
            Some(Change::Create { path: path.clone(), data, owner, container, counter }),
            Answer::Created(path),
        ))
    }

    fn node_at(&self, path: &str, version: Option<i32>) -> Result<&Node, ZkError> {
        let node = self.get(path).ok_or(ZkError::NoNode)?;
        match version {
            Some(version) if version != node.version => Err(ZkError::BadVersion),
            _ => Ok(node),
        }
    }

    /// Makes one change, and notes what watches may want to know.
    pub fn apply(&mut self, change: &Change, zxid: i64, time: i64, seen: &mut Vec<Sighting>) {
        match change {
            Change::Create { path, data, owner, container, counter } => {
                let (parent_path, name) = split(path);
                let Some(parent) = self.nodes.get_mut(parent_path) else { return };
                parent.children.insert(name.into());
                if *counter > parent.counter {
                    parent.counter = *counter;
                    parent.pzxid = zxid;
                }
                let node = Node {
                    data: data.clone(),
                    czxid: zxid,
                    mzxid: zxid,
                    pzxid: zxid,
                    owner: *owner,
                    ctime: time,
                    container: *container,
                    ..Node::default()
                };
                self.nodes.insert(path.clone(), node);
                seen.push(Sighting { path: path.clone(), event: WatchEvent::Created, czxid: zxid });
                seen.push(Sighting {
                    path: parent_path.into(),
                    event: WatchEvent::ChildrenChanged,
                    czxid: 0,
                });
            }
            Change::Delete { path } => self.remove(path, zxid, seen),
            Change::SetData { path, data, version } => {
                let Some(node) = self.nodes.get_mut(path) else { return };
                node.data.clone_from(data);
                node.mzxid = zxid;
                node.version = *version;
                seen.push(Sighting { path: path.clone(), event: WatchEvent::DataChanged, czxid: node.czxid });
            }
            Change::ForceCounter { path, value } => {
                if let Some(node) = self.nodes.get_mut(path) {
                    // A counter never goes back.
                    node.counter = node.counter.max(*value);
                }
            }
            Change::OpenSession { id, timeout } => {
                self.sessions.insert(*id, *timeout);
            }
            Change::CloseSession { id, deleted } => {
                self.sessions.remove(id);
                for path in deleted {
                    self.remove(path, zxid, seen);
                }
            }
        }
    }

    fn remove(&mut self, path: &Arc<str>, zxid: i64, seen: &mut Vec<Sighting>) {
        let Some(node) = self.nodes.remove(path) else { return };
        let (parent_path, name) = split(path);
        if let Some(parent) = self.nodes.get_mut(parent_path) {
            parent.children.remove(name);
            parent.pzxid = zxid;
        }
        seen.push(Sighting { path: path.clone(), event: WatchEvent::Deleted, czxid: node.czxid });
        seen.push(Sighting { path: parent_path.into(), event: WatchEvent::ChildrenChanged, czxid: 0 });
    }
}

fn split(path: &str) -> (&str, &str) {
    match path.rfind('/') {
        Some(0) | None => ("/", path.trim_start_matches('/')),
        Some(at) => (&path[..at], &path[at + 1..]),
    }
}

/// The path of the node that holds `path`.
pub(super) fn parent_of(path: &str) -> &str {
    split(path).0
}

/// Checks a path as the server does. A sequential name may end in a slash: the number makes it whole.
pub(super) fn check_path(path: &str, sequential: bool) -> Result<(), ZkError> {
    let bad = |why: &str| Err(ZkError::BadArguments(format!("{path:?}: {why}")));
    if path == "/" {
        return Ok(());
    }
    let Some(rest) = path.strip_prefix('/') else { return bad("a path begins with a slash") };
    let mut segments = rest.split('/').peekable();
    while let Some(segment) = segments.next() {
        let completed_by_number = sequential && segments.peek().is_none();
        match segment {
            "" if !completed_by_number => return bad("an empty segment"),
            "." | ".." if !completed_by_number => return bad("a relative segment"),
            _ => {}
        }
        let refused = |c: char| matches!(c, '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}' | '\u{e000}'..='\u{f8ff}' | '\u{fff0}'..='\u{ffff}');
        if segment.contains(refused) {
            return bad("a character that is not allowed");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn create(path: &str, mode: CreateMode) -> Write {
        Write::One(Operation::Create { path: path.into(), data: vec![], mode, acl: Acl::Open })
    }

    struct Bench {
        tree: Tree,
        zxid: i64,
        now: Nanos,
        overflow: Overflow,
    }

    impl Bench {
        fn new() -> Self {
            Self { tree: Tree::new(), zxid: 0, now: 0, overflow: Overflow::default() }
        }

        fn run(&mut self, write: Write) -> Result<Answer, ZkError> {
            self.zxid += 1;
            let with = Preparing { session: 7, now: self.now, outstanding: 10, overflow: &mut self.overflow };
            let (changes, answer) = self.tree.prepare(write, with)?;
            for change in &changes {
                self.tree.apply(change, self.zxid, 0, &mut Vec::new());
            }
            Ok(answer)
        }

        fn name(&mut self, path: &str) -> String {
            match self.run(create(path, CreateMode::EphemeralSequential)) {
                Ok(Answer::Created(path)) => path.to_string(),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn numbers_count_every_creation_and_restart_with_the_parent() {
        let mut bench = Bench::new();
        bench.run(create("/q", CreateMode::Persistent)).expect("made");
        assert_eq!(bench.name("/q/a-"), "/q/a-0000000000");
        bench.run(create("/q/plain", CreateMode::Persistent)).expect("made");
        assert_eq!(bench.name("/q/a-"), "/q/a-0000000002");
        let delete = |path: &str| Write::One(Operation::Delete { path: path.into(), version: None });
        for path in ["/q/a-0000000000", "/q/plain", "/q/a-0000000002", "/q"] {
            bench.run(delete(path)).expect("deleted");
        }
        bench.run(create("/q", CreateMode::Persistent)).expect("made again");
        assert_eq!(bench.name("/q/a-"), "/q/a-0000000000");
    }

    #[test]
    fn the_counter_sticks_on_a_quiet_parent_and_wraps_on_a_busy_one() {
        let mut bench = Bench::new();
        bench.run(create("/q", CreateMode::Persistent)).expect("made");
        bench.run(Write::ForceCounter { path: "/q".into(), value: i32::MAX }).expect("forced");
        assert_eq!(bench.name("/q/a-"), "/q/a-2147483647");
        bench.now += 100;
        assert_eq!(bench.name("/q/b-"), "/q/b-2147483647");
        assert_eq!(bench.name("/q/c-"), "/q/c--2147483648");
        assert_eq!(bench.name("/q/d-"), "/q/d--2147483647");
        bench.now += 100;
        assert_eq!(bench.name("/q/e-"), "/q/e-2147483647");
    }

    #[test]
    fn refusals_come_in_the_order_of_the_real_server() {
        let mut bench = Bench::new();
        assert_eq!(bench.run(create("/q/x", CreateMode::Persistent)), Err(ZkError::NoNode));
        bench.run(create("/q", CreateMode::Persistent)).expect("made");
        bench.run(create("/q/e", CreateMode::Ephemeral)).expect("made");
        assert_eq!(bench.run(create("/q", CreateMode::Persistent)), Err(ZkError::NodeExists));
        assert_eq!(
            bench.run(create("/q/e/x", CreateMode::Persistent)),
            Err(ZkError::NoChildrenForEphemerals)
        );
        let delete = |version| Write::One(Operation::Delete { path: "/q".into(), version });
        assert_eq!(bench.run(delete(Some(5))), Err(ZkError::BadVersion));
        assert_eq!(bench.run(delete(None)), Err(ZkError::NotEmpty));
    }

    #[test]
    fn a_multi_sees_its_own_changes_and_is_all_or_nothing() {
        let mut bench = Bench::new();
        let op = |path: &str| Operation::Create {
            path: path.into(),
            data: vec![],
            mode: CreateMode::Persistent,
            acl: Acl::Open,
        };
        let missing = Operation::Check { path: "/nowhere".into(), version: None };
        assert_eq!(bench.run(Write::Multi(vec![op("/m"), op("/m/n"), missing])), Err(ZkError::NoNode));
        assert!(bench.tree.get("/m").is_none());
        bench.run(Write::Multi(vec![op("/m"), op("/m/n")])).expect("made");
        assert!(bench.tree.get("/m/n").is_some());
    }

    #[test]
    fn cversion_counts_creations_and_deletions() {
        let mut bench = Bench::new();
        bench.run(create("/q", CreateMode::Persistent)).expect("made");
        let name = bench.name("/q/a-");
        bench.run(Write::One(Operation::Delete { path: name, version: None })).expect("deleted");
        let stat = bench.tree.get("/q").expect("there").stat();
        assert_eq!((stat.cversion, stat.num_children, stat.pzxid), (2, 0, 3));
    }

    #[test]
    fn paths_are_checked() {
        for good in ["/", "/a", "/a/b.c", "/a/..b"] {
            assert_eq!(check_path(good, false), Ok(()), "{good}");
        }
        for bad in ["", "a", "/a/", "//a", "/a/./b", "/a/..", "/a\0", "/a\u{7f}"] {
            assert!(check_path(bad, false).is_err(), "{bad:?}");
        }
        assert_eq!(check_path("/a/", true), Ok(()));
    }
}
