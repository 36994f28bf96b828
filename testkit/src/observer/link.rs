//! One blocking connection to a server.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::ObserverError;
use crate::wire::{MAX_FRAME, Malformed, Op, Reader, Writer, XID_PING};

/// How long connecting and each answer may take.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(super) struct Reply {
    pub err: i32,
    pub body: Vec<u8>,
}

#[derive(Debug)]
pub(super) struct Link {
    stream: TcpStream,
    last_xid: i32,
    pub session: i64,
    pub password: Vec<u8>,
    pub timeout: Duration,
}

impl Link {
    /// Connects and attaches to a session, or makes a new one for id 0. A server that is starting is waited
    /// for.
    pub fn attach(
        server: SocketAddr,
        timeout: Duration,
        session: i64,
        password: &[u8],
    ) -> Result<Self, ObserverError> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match Self::try_attach(server, timeout, session, password) {
                Err(ObserverError::Io(_)) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                other => return other,
            }
        }
    }

    fn try_attach(
        server: SocketAddr,
        timeout: Duration,
        session: i64,
        password: &[u8],
    ) -> Result<Self, ObserverError> {
        let mut stream = TcpStream::connect_timeout(&server, PATIENCE)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let timeout_ms = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
        let password = if password.is_empty() { &[0; 16] } else { password };
        let hello = Writer::new().int(0).long(0).int(timeout_ms).long(session).buffer(password).bool(false);
        stream.write_all(&hello.into_frame())?;
        let answer = read_frame(&mut stream)?;
        let mut answer = Reader::new(&answer);
        let (_protocol, timeout_ms, session) = (answer.int()?, answer.int()?, answer.long()?);
        let password = answer.buffer()?.to_owned();
        if timeout_ms <= 0 || session == 0 {
            return Err(ObserverError::SessionExpired);
        }
        let timeout = Duration::from_millis(u64::from(timeout_ms.unsigned_abs()));
        Ok(Self { stream, last_xid: 0, session, password, timeout })
    }

    /// Whether the server has closed the connection.
    pub fn is_stale(&self) -> bool {
        let peek = |stream: &TcpStream| {
            stream.set_nonblocking(true)?;
            let seen = stream.peek(&mut [0]);
            stream.set_nonblocking(false)?;
            seen
        };
        match peek(&self.stream) {
            Ok(n) => n == 0,
            Err(error) => error.kind() != io::ErrorKind::WouldBlock,
        }
    }

    pub fn call(&mut self, op: Op, record: &[u8]) -> Result<Reply, ObserverError> {
        let replies = self.call_together(op, &[record.to_owned()])?;
        replies.into_iter().next().ok_or(ObserverError::Malformed(Malformed))
    }

    /// Sends all requests in one write, then reads all replies.
    pub fn call_together(&mut self, op: Op, records: &[Vec<u8>]) -> Result<Vec<Reply>, ObserverError> {
        let mut frames = Vec::new();
        let first = self.last_xid + 1;
        for record in records {
            self.last_xid += 1;
            frames.extend(Writer::new().int(self.last_xid).int(op.code()).raw(record).into_frame());
        }
        self.stream.write_all(&frames)?;
        (first..=self.last_xid).map(|xid| self.reply(xid)).collect()
    }

    pub fn ping(&mut self) -> Result<(), ObserverError> {
        self.stream.write_all(&Writer::new().int(XID_PING).int(Op::Ping.code()).into_frame())?;
        self.reply(XID_PING).map(drop)
    }

    pub fn close_session(&mut self) -> Result<(), ObserverError> {
        self.call(Op::CloseSession, &[]).map(drop)
    }

    /// Closes the session, without much patience: the server may be gone for good, or the network with it.
    pub fn close_quickly(&mut self) -> Result<(), ObserverError> {
        self.stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        self.close_session()
    }

    fn reply(&mut self, xid: i32) -> Result<Reply, ObserverError> {
        let frame = read_frame(&mut self.stream)?;
        let mut reader = Reader::new(&frame);
        let (got, _zxid, err) = (reader.int()?, reader.long()?, reader.int()?);
        if got != xid {
            return Err(ObserverError::Malformed(Malformed));
        }
        Ok(Reply { err, body: reader.rest().to_owned() })
    }
}

fn read_frame(stream: &mut TcpStream) -> Result<Vec<u8>, ObserverError> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_be_bytes(length) as usize;
    if length > MAX_FRAME {
        return Err(ObserverError::Malformed(Malformed));
    }
    let mut frame = vec![0; length];
    stream.read_exact(&mut frame)?;
    Ok(frame)
}
