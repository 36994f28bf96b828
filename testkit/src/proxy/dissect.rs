//! Reads the frames of one connection and keeps track of which reply belongs to which request.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::entry::What;
use super::rules::RuleState;
use crate::wire::{EventKind, Malformed, Op, Reader, XID_EVENT};

/// A request whose reply is still to come.
#[derive(Debug)]
struct Pending {
    op: Op,
    paths: Vec<String>,
    rule: Option<Arc<RuleState>>,
}

/// What is known of one connection's traffic.
#[derive(Debug, Default)]
pub(super) struct Dissector {
    client_greeted: bool,
    server_greeted: bool,
    greeting_rule: Option<Arc<RuleState>>,
    /// By xid. Pings all have the same, hence the queue.
    pending: HashMap<i32, VecDeque<Pending>>,
}

impl Dissector {
    /// Reads a frame of the client, without its length.
    pub(super) fn read_client(&mut self, body: &[u8]) -> What {
        let opaque = What::Opaque { length: body.len() };
        if !self.client_greeted {
            self.client_greeted = true;
            return connect(body).unwrap_or(opaque);
        }
        request(body).unwrap_or(opaque)
    }

    /// Notes a request that goes on to the server, with the rule that waits for its reply.
    pub(super) fn expect_reply(&mut self, what: &What, rule: Option<Arc<RuleState>>) {
        match what {
            What::Connect { .. } => self.greeting_rule = rule,
            What::Request { xid, op, paths } => {
                let pending = Pending { op: *op, paths: paths.clone(), rule };
                self.pending.entry(*xid).or_default().push_back(pending);
            }
            _ => {}
        }
    }

    /// Reads a frame of the server, without its length, and finds the rule that waits for it.
    pub(super) fn read_server(&mut self, body: &[u8]) -> (What, Option<Arc<RuleState>>) {
        let opaque = What::Opaque { length: body.len() };
        if !self.server_greeted {
            self.server_greeted = true;
            return (connected(body).unwrap_or(opaque), self.greeting_rule.take());
        }
        self.reply(body).unwrap_or((opaque, None))
    }

    fn reply(&mut self, body: &[u8]) -> Result<(What, Option<Arc<RuleState>>), Malformed> {
        let mut body = Reader::new(body);
        let (xid, zxid, err) = (body.int()?, body.long()?, body.int()?);
        if xid == XID_EVENT {
            let (kind, _state, path) = (body.int()?, body.int()?, body.string()?);
            return Ok((What::Event { kind: EventKind::from_code(kind), path: path.to_owned() }, None));
        }
        let pending = self.pending.get_mut(&xid).and_then(VecDeque::pop_front);
        let Pending { op, paths, rule } = pending.ok_or(Malformed)?;
        if self.pending.get(&xid).is_some_and(VecDeque::is_empty) {
            self.pending.remove(&xid);
        }
        let created = (op.is_create() && err == 0).then(|| body.string().ok()).flatten().map(str::to_owned);
        Ok((What::Reply { xid, op, paths, zxid, err, created }, rule))
    }

    /// The rules whose replies will not come any more.
    pub(super) fn unmet_rules(&mut self) -> Vec<Arc<RuleState>> {
        let pending =
            self.pending.drain().flat_map(|(_, pending)| pending).filter_map(|pending| pending.rule);
        pending.chain(self.greeting_rule.take()).collect()
    }
}

fn connect(body: &[u8]) -> Result<What, Malformed> {
    let mut body = Reader::new(body);
    let (_protocol, _last_zxid) = (body.int()?, body.long()?);
    let (timeout_ms, session) = (body.int()?, body.long()?);
    body.buffer()?;
    Ok(What::Connect { session, timeout_ms })
}

fn connected(body: &[u8]) -> Result<What, Malformed> {
    let mut body = Reader::new(body);
    let _protocol = body.int()?;
    let (timeout_ms, session) = (body.int()?, body.long()?);
    Ok(What::Connected { session, timeout_ms, password: body.buffer()?.to_owned() })
}

fn request(body: &[u8]) -> Result<What, Malformed> {
    let mut body = Reader::new(body);
    let (xid, op) = (body.int()?, Op::from_code(body.int()?));
    // A request whose record cannot be read is still a request of that type.
    let paths = paths(op, body).unwrap_or_default();
    Ok(What::Request { xid, op, paths })
}

fn paths(op: Op, mut record: Reader<'_>) -> Result<Vec<String>, Malformed> {
    match op {
        Op::Connect
        | Op::CloseSession
        | Op::Ping
        | Op::Reconfig
        | Op::Auth
        | Op::Sasl
        | Op::SetWatches
        | Op::SetWatches2
        | Op::WhoAmI
        | Op::Other(_) => Ok(Vec::new()),
        Op::Multi | Op::MultiRead => multi_paths(record),
        _ => Ok(vec![record.string()?.to_owned()]),
    }
}

fn multi_paths(mut record: Reader<'_>) -> Result<Vec<String>, Malformed> {
    let mut paths = Vec::new();
    loop {
        let (op, done, _err) = (record.int()?, record.bool()?, record.int()?);
        if done {
            return Ok(paths);
        }
        paths.push(record.string()?.to_owned());
        match Op::from_code(op) {
            op if op.is_create() => {
                record.buffer()?;
                record.skip_acl()?;
                record.int()?;
                if op == Op::CreateTtl {
                    record.long()?;
                }
            }
            Op::SetData => {
                record.buffer()?;
                record.int()?;
            }
            Op::Delete | Op::Check => {
                record.int()?;
            }
            Op::GetData | Op::GetChildren => {
                record.bool()?;
            }
            _ => return Err(Malformed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Writer;

    fn greeted() -> Dissector {
        Dissector { client_greeted: true, server_greeted: true, ..Dissector::default() }
    }

    fn reply(xid: i32, err: i32) -> Vec<u8> {
        Writer::new().int(xid).long(9).int(err).into_bytes()
    }

    #[test]
    fn a_reply_carries_the_operation_and_path_of_its_request() {
        let mut connection = greeted();
        for (xid, op) in [(1, Op::Delete), (2, Op::GetChildren2)] {
            let body = Writer::new().int(xid).int(op.code()).string("/a").int(-1).into_bytes();
            let what = connection.read_client(&body);
            assert_eq!(what, What::Request { xid, op, paths: vec!["/a".to_owned()] });
            connection.expect_reply(&what, None);
        }
        let (what, _) = connection.read_server(&reply(2, -101));
        let paths = vec!["/a".to_owned()];
        let expected = What::Reply { xid: 2, op: Op::GetChildren2, paths, zxid: 9, err: -101, created: None };
        assert_eq!(what, expected);
        assert_eq!(connection.pending.len(), 1);
        assert!(matches!(connection.read_server(&reply(7, 0)).0, What::Opaque { .. }));
    }

    #[test]
    fn a_multi_is_about_the_paths_of_its_parts() {
        let header = |op: Op| Writer::new().int(op.code()).bool(false).int(-1);
        let body = Writer::new()
            .int(1)
            .int(Op::Multi.code())
            .raw(&header(Op::Check).string("/a").int(3).into_bytes())
            .raw(&header(Op::Create).string("/b").buffer(b"x").open_acl().int(0).into_bytes())
            .raw(&header(Op::Delete).string("/c").int(-1).into_bytes())
            .int(-1)
            .bool(true)
            .int(-1)
            .into_bytes();
        let What::Request { paths, .. } = greeted().read_client(&body) else { panic!("not a request") };
        assert_eq!(paths, ["/a", "/b", "/c"]);
    }
}
