//! The one-shot watches that one server keeps for its connections.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::network::ConnId;
use super::tree::Sighting;
use crate::zk::WatchEvent;

/// The number by which a connection knows a watch of its own.
pub(super) type WatchId = u64;

type Table = BTreeMap<Arc<str>, Vec<(ConnId, WatchId)>>;

/// What one connection is to be told: the event, and all of its watches that it meets.
#[derive(Debug)]
pub(super) struct Notice {
    pub conn: ConnId,
    pub path: Arc<str>,
    pub event: WatchEvent,
    pub watches: Vec<WatchId>,
}

#[derive(Debug, Default)]
pub(super) struct Watches {
    data: Table,
    children: Table,
}

impl Watches {
    pub fn add_data(&mut self, path: &str, conn: ConnId, id: WatchId) {
        self.data.entry(path.into()).or_default().push((conn, id));
    }

    pub fn add_children(&mut self, path: &str, conn: ConnId, id: WatchId) {
        self.children.entry(path.into()).or_default().push((conn, id));
    }

    pub fn remove(&mut self, conn: ConnId, id: WatchId) {
        self.retain(|entry| entry != (conn, id));
    }

    pub fn remove_all(&mut self, conn: ConnId) {
        self.retain(|entry| entry.0 != conn);
    }

    fn retain(&mut self, keep: impl Fn((ConnId, WatchId)) -> bool) {
        for table in [&mut self.data, &mut self.children] {
            table.retain(|_, entries| {
                entries.retain(|entry| keep(*entry));
                !entries.is_empty()
            });
        }
    }

    pub fn len(&self) -> usize {
        self.data.values().chain(self.children.values()).map(Vec::len).sum()
    }

    /// Every watched path, for a report of what was left behind.
    pub fn paths(&self) -> impl Iterator<Item = (&str, ConnId)> {
        let both = self.data.iter().chain(&self.children);
        both.flat_map(|(path, entries)| entries.iter().map(move |entry| (&**path, entry.0)))
    }

    /// Takes the watches that `sighting` sets off; each connection gets one notice for all of its own.
    pub fn fire(&mut self, sighting: &Sighting) -> Vec<Notice> {
        let (data, children) = match sighting.event {
            WatchEvent::Created | WatchEvent::DataChanged => (self.data.remove(&sighting.path), None),
            WatchEvent::Deleted => (self.data.remove(&sighting.path), self.children.remove(&sighting.path)),
            WatchEvent::ChildrenChanged => (None, self.children.remove(&sighting.path)),
            WatchEvent::ConnectionEnded => (None, None),
        };
        let mut notices: Vec<Notice> = Vec::new();
        for (conn, id) in data.into_iter().flatten().chain(children.into_iter().flatten()) {
            match notices.iter_mut().find(|notice| notice.conn == conn) {
                Some(notice) => notice.watches.push(id),
                None => notices.push(Notice {
                    conn,
                    path: sighting.path.clone(),
                    event: sighting.event,
                    watches: vec![id],
                }),
            }
        }
        notices
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sighting(path: &str, event: WatchEvent) -> Sighting {
        Sighting { path: path.into(), event, czxid: 0 }
    }

    #[test]
    fn a_watch_fires_once_and_only_for_its_kind() {
        let mut watches = Watches::default();
        watches.add_data("/a", 1, 10);
        watches.add_children("/a", 1, 11);
        watches.add_data("/a", 2, 20);
        assert!(watches.fire(&sighting("/b", WatchEvent::Deleted)).is_empty());
        let told = watches.fire(&sighting("/a", WatchEvent::DataChanged));
        assert_eq!(
            told.iter().map(|n| (n.conn, n.watches.clone())).collect::<Vec<_>>(),
            [(1, vec![10]), (2, vec![20])]
        );
        let told = watches.fire(&sighting("/a", WatchEvent::Deleted));
        assert_eq!(told.len(), 1);
        assert_eq!(told[0].watches, [11]);
        assert_eq!(watches.len(), 0);
    }

    #[test]
    fn a_deletion_is_one_notice_for_data_and_child_watches() {
        let mut watches = Watches::default();
        watches.add_data("/a", 1, 10);
        watches.add_children("/a", 1, 11);
        let told = watches.fire(&sighting("/a", WatchEvent::Deleted));
        assert_eq!(told.len(), 1);
        assert_eq!(told[0].watches, [10, 11]);
    }
}
