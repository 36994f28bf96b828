//! A second knock at a server that could not be attached to, to find out what is wrong.
//!
//! The crate only says that no host is left. What the server makes of one of ZooKeeper's four-letter words, and
//! where TLS is concerned of a handshake of ours, tells the causes apart that people meet.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::words;

/// Long enough for an answer from another continent.
const PATIENCE: Duration = Duration::from_millis(500);
/// The longest that all of it may take.
const LONGEST: Duration = Duration::from_secs(2);

/// What to knock with.
pub(super) struct Knock {
    pub(super) peers: Vec<SocketAddr>,
    /// How we want to speak TLS, or none for plain TCP.
    #[cfg(feature = "tls")]
    pub(super) tls: Option<super::tls::Handshake>,
}

impl Knock {
    /// What is wrong with the server, in words that say what to change where that is known.
    pub(super) async fn why(self) -> String {
        let look = tokio::task::spawn_blocking(move || self.look());
        match tokio::time::timeout(LONGEST, look).await {
            Ok(Ok(why)) => why,
            _ => "the server does not answer".to_owned(),
        }
    }

    fn look(&self) -> String {
        let mut failure = None;
        for peer in &self.peers {
            match open(*peer) {
                Ok(stream) => return self.listen(*peer, stream),
                Err(error) => failure = Some(error),
            }
        }
        match failure {
            Some(error) if error.kind() != io::ErrorKind::TimedOut => words::system_error(&error),
            _ => "no answer".to_owned(),
        }
    }

    /// What the server says, now that there is a TCP connection.
    fn listen(&self, peer: SocketAddr, stream: TcpStream) -> String {
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            return match tls.look(stream) {
                super::tls::Look::Says(why) => why,
                super::tls::Look::Answer(answer) => answer.over_tls(),
                super::tls::Look::NoTls => match open(peer).map(ask) {
                    Ok(Answer::Words(_)) => "the port speaks ZooKeeper without TLS: connect to the server's \
                        secureClientPort, or leave tls out"
                        .to_owned(),
                    _ => {
                        "the server takes connections, but broke off the TLS handshake or did not answer it; \
                        it may not speak TLS on this port"
                            .to_owned()
                    }
                },
            };
        }
        let answer = ask(stream);
        #[cfg(feature = "tls")]
        if !matches!(answer, Answer::Words(_))
            && let Ok(stream) = open(peer)
            && super::tls::speaks_tls(stream)
        {
            return "the port speaks TLS: set tls, or connect to the server's clientPort".to_owned();
        }
        let _ = peer;
        answer.over_tcp()
    }
}

/// What came of a four-letter word.
pub(super) enum Answer {
    Words(String),
    Closed,
    Silent,
}

impl Answer {
    fn over_tcp(&self) -> String {
        match self {
            Self::Words(words) => broke_off(words),
            Self::Closed => {
                "the server closes each connection at once, without a handshake: it may be starting, \
                or have as many connections from this address as its maxClientCnxns allows"
                    .to_owned()
            }
            Self::Silent => "the server takes connections, but answers no handshake".to_owned(),
        }
    }

    #[cfg(feature = "tls")]
    fn over_tls(&self) -> String {
        match self {
            Self::Words(words) => broke_off(words),
            Self::Closed => {
                "the server closed the connection after the TLS handshake: if it asks clients for a \
                certificate, set one in tls that its trust store knows"
                    .to_owned()
            }
            Self::Silent => "the server took the TLS handshake, but does not answer".to_owned(),
        }
    }
}

fn broke_off(words: &str) -> String {
    if words.contains("not currently serving") {
        return "the server is up, but serves no clients: it has no quorum at the moment".to_owned();
    }
    "the server is up, but broke off the handshake or did not answer it; its log may say why".to_owned()
}

fn open(peer: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&peer, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Asks for the server's state, in the word that its settings allow by default. One that does not allow it says so.
pub(super) fn ask(stream: impl Read + Write) -> Answer {
    heard(stream).unwrap_or(Answer::Closed)
}

/// As [`ask`], with the error that is not just the end of the connection.
pub(super) fn heard(mut stream: impl Read + Write) -> io::Result<Answer> {
    let deadline = Instant::now() + PATIENCE;
    stream.write_all(b"srvr")?;
    stream.flush()?;
    let mut words = Vec::new();
    let mut some = [0; 1024];
    while words.len() < 4 * some.len() && Instant::now() < deadline {
        match stream.read(&mut some) {
            Ok(0) => break,
            Ok(read) => words.extend_from_slice(&some[..read]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // A server that has answered may close in whatever way it likes.
            Err(_) if !words.is_empty() => break,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                return Ok(Answer::Silent);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(match String::from_utf8(words) {
        Ok(words) if words.starts_with(|c: char| c.is_ascii_alphabetic()) => Answer::Words(words),
        _ => Answer::Closed,
    })
}
