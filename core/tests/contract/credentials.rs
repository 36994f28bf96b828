//! Identities: digest and SASL users, and certificates in both directions. With real servers only.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use forelock::zk::zookeeper::{Authentication, Config, SaslDigestMd5, TlsConfig, ZooKeeperConnector};
use forelock::zk::{
    Acl, ConnectError, ConnectRequest, Connection, Connector, CreateMode, Endpoint, SessionCredentials,
    ZkError,
};
use forelock::{Client, ErrorCode, Options};
use forelock_testkit::proxy::ReservedPort;
use forelock_testkit::{Version, ZooKeeper, off_thread};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

use crate::real::{Real, plain_connector};
use crate::world::{present, request};

async fn connect(config: Config, request: ConnectRequest) -> Result<Arc<dyn Connection>, ConnectError> {
    ZooKeeperConnector::new(config)?.connect(request).await
}

fn to(host: &str, port: u16, session: Option<SessionCredentials>) -> ConnectRequest {
    let real = Real::shared(Version::default());
    ConnectRequest { endpoint: Endpoint { host: host.to_owned(), port }, ..request(&real, session) }
}

/// Creates a node that only its creator may change, and sees to it that this is so.
async fn only_the_creator_writes(path: &str, creator: &dyn Connection, others: &dyn Connection) {
    creator.create(path, b"", CreateMode::Persistent, &Acl::CreatorWritesAllRead).await.unwrap();
    assert!(others.get_data(path).await.is_ok());
    assert_eq!(others.set_data(path, b"x", None).await, Err(ZkError::NoAuth));
    assert!(creator.set_data(path, b"x", None).await.is_ok());
}

#[tokio::test]
async fn digest_users_have_their_own_nodes() {
    let port = off_thread(|| Real::shared(Version::default()).server.client_addr().port()).await;
    let user = |name: &str| Config {
        authentications: vec![Authentication::digest(name, "pw")],
        ..Config::default()
    };
    let alice = connect(user("alice"), to("127.0.0.1", port, None)).await.unwrap();
    let bob = connect(user("bob"), to("127.0.0.1", port, None)).await.unwrap();
    only_the_creator_writes("/of-alice", &*alice, &*bob).await;
    // Who we are does not go with the session, but with each connection.
    let again = connect(user("alice"), to("127.0.0.1", port, Some(alice.credentials()))).await.unwrap();
    assert!(again.set_data("/of-alice", b"y", None).await.is_ok());
    let unnamed = connect(Config::default(), to("127.0.0.1", port, Some(alice.credentials()))).await.unwrap();
    assert_eq!(unnamed.set_data("/of-alice", b"z", None).await, Err(ZkError::NoAuth));
}

#[tokio::test]
async fn a_scheme_that_the_server_does_not_know() {
    let port = off_thread(|| Real::shared(Version::default()).server.client_addr().port()).await;
    let secret = b"secret".to_vec();
    let config = Config { authentications: vec![Authentication::new("magic", secret)], ..Config::default() };
    let error = connect(config, to("127.0.0.1", port, None)).await.map(drop).unwrap_err();
    assert!(matches!(error, ConnectError::AuthFailed(_)), "{error:?}");
}

/// A folder of ours for files that a server reads.
fn folder(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder");
    folder
}

/// A server with a user `bob`, who has to log in by SASL.
static SASL_SERVER: LazyLock<ZooKeeper> = LazyLock::new(|| {
    let jaas = folder("sasl").join("jaas.conf");
    let_bob_in_with(&jaas, "builder");
    sasl_server(&jaas)
});

fn let_bob_in_with(jaas: &Path, password: &str) {
    let module = "org.apache.zookeeper.server.auth.DigestLoginModule";
    fs::write(jaas, format!("Server {{ {module} required user_bob={password:?}; }};\n")).expect("written");
}

fn sasl_server(jaas: &Path) -> ZooKeeper {
    ZooKeeper::builder()
        .config("authProvider.sasl", "org.apache.zookeeper.server.auth.SASLAuthenticationProvider")
        .jvm_arg(&format!("-Djava.security.auth.login.config={}", jaas.display()))
        .start()
        .expect("a server")
}

fn sasl(password: &str) -> Config {
    let user = SaslDigestMd5::new("bob", password);
    Config { sasl: Some(user), ..Config::default() }
}

#[tokio::test]
async fn sasl_users_have_their_own_nodes() {
    let port = off_thread(|| SASL_SERVER.client_addr().port()).await;
    let bob = connect(sasl("builder"), to("127.0.0.1", port, None)).await.unwrap();
    let nobody = plain_connector().connect(to("127.0.0.1", port, None)).await.unwrap();
    only_the_creator_writes("/of-bob", &*bob, &*nobody).await;
    bob.create("/of-bob/a", b"", CreateMode::Ephemeral, &Acl::Open).await.unwrap();
    bob.abort();
    let again = connect(sasl("builder"), to("127.0.0.1", port, Some(bob.credentials()))).await.unwrap();
    assert!(present(&again, "/of-bob/a").await);
    assert!(again.set_data("/of-bob", b"y", None).await.is_ok());
    again.close().await.unwrap();
}

#[tokio::test]
async fn a_wrong_sasl_password_is_refused() {
    let port = off_thread(|| SASL_SERVER.client_addr().port()).await;
    let config = sasl("burglar");
    assert!(!format!("{config:?}").contains("burglar"));
    let error = connect(config, to("127.0.0.1", port, None)).await.map(drop).unwrap_err();
    assert!(matches!(error, ConnectError::AuthFailed(_)), "{error:?}");
}

#[tokio::test]
async fn a_server_without_sasl_is_not_taken_for_one_that_knows_us() {
    for version in [Version::V3_9_5, Version::V3_8_6] {
        let port = off_thread(move || Real::shared(version).server.client_addr().port()).await;
        let error = connect(sasl("builder"), to("127.0.0.1", port, None)).await.map(drop).unwrap_err();
        let ConnectError::AuthFailed(why) = &error else { panic!("{error:?}") };
        assert!(why.contains("does not authenticate by SASL") && why.contains("bob"), "{why}");
    }
}

/// A change of the password that reaches the servers after the client: it is refused, says so, and comes back by
/// itself.
#[tokio::test]
async fn a_client_that_was_refused_recovers_with_the_servers() {
    let jaas = folder("sasl-change").join("jaas.conf");
    let_bob_in_with(&jaas, "old");
    let at = jaas.clone();
    let server = off_thread(move || sasl_server(&at)).await;
    let options = Options::default().with_sasl(sasl("new").sasl);
    let client = Client::with_options(&server.connect_string(), options).unwrap();
    let mutex = client.mutex("/jobs").unwrap();
    for _ in 0..3 {
        let error = mutex.acquire().await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::NotPermitted, "{error}");
        assert!(error.message().contains("127.0.0.1") && error.message().contains("bob"), "{error}");
    }
    let_bob_in_with(&jaas, "new");
    let server = off_thread(move || {
        server.restart().expect("it starts again");
        server
    })
    .await;
    let held = loop {
        // Refused by what the round before the restart said, at most.
        match mutex.acquire().await {
            Ok(held) => break held,
            Err(error) => assert_eq!(error.code(), ErrorCode::NotPermitted, "{error}"),
        }
    };
    held.verify().await.unwrap();
    client.close().await.unwrap();
    off_thread(move || drop(server)).await;
}

/// One of two servers has the old password still.
#[tokio::test]
async fn a_server_that_refuses_leaves_the_others() {
    let port = off_thread(|| SASL_SERVER.client_addr().port()).await;
    let jaas = folder("sasl-other").join("jaas.conf");
    let_bob_in_with(&jaas, "old");
    let other = off_thread(move || sasl_server(&jaas)).await;
    for _ in 0..6 {
        let servers = format!("{},127.0.0.1:{port}", other.connect_string());
        let options = Options::default().with_sasl(sasl("builder").sasl);
        let client = Client::with_options(&servers, options).unwrap();
        client.connect().await.unwrap();
        client.close().await.unwrap();
    }
    off_thread(move || drop(other)).await;
}

/// A server that speaks TLS, on a second port, to whoever has a certificate of its authority.
struct Secure {
    server: ZooKeeper,
    port: u16,
    /// Or somebody's outgoing connection might take it before the server does.
    _reserved: ReservedPort,
    ca_pem: String,
    /// A client's certificate and key.
    identity: (String, String),
    /// The certificate of an authority that has nothing to do with it.
    foreign_pem: String,
}

static SECURE: LazyLock<Secure> = LazyLock::new(|| {
    let secure = Secure::start("tls", |_| ());
    secure.warm_up();
    secure
});

impl Secure {
    /// A server whose own certificate is as `change` has it.
    fn start(name: &str, change: impl FnOnce(&mut CertificateParams)) -> Self {
        let folder = folder(name);
        let ca = authority();
        let server_key = KeyPair::generate().expect("a key");
        let mut server_certificate = CertificateParams::new(vec!["localhost".to_owned()]).expect("names");
        change(&mut server_certificate);
        let server_certificate = server_certificate.signed_by(&server_key, &ca).expect("a certificate");
        let client_key = KeyPair::generate().expect("a key");
        let names = vec!["client".to_owned()];
        let client_certificate =
            CertificateParams::new(names).expect("names").signed_by(&client_key, &ca).expect("a certificate");
        let key_store = folder.join("server.pem");
        fs::write(&key_store, server_key.serialize_pem() + &server_certificate.pem()).expect("written");
        let trust_store = folder.join("ca.pem");
        fs::write(&trust_store, ca.pem()).expect("written");

        let reserved = ReservedPort::new(false).expect("a free port");
        let port = reserved.port();
        let server = ZooKeeper::builder()
            .config("secureClientPort", &port.to_string())
            .config("secureClientPortAddress", "127.0.0.1")
            .config("serverCnxnFactory", "org.apache.zookeeper.server.NettyServerCnxnFactory")
            .config("ssl.keyStore.location", &key_store.display().to_string())
            .config("ssl.trustStore.location", &trust_store.display().to_string())
            .start()
            .expect("a server");
        Self {
            server,
            port,
            _reserved: reserved,
            ca_pem: ca.pem(),
            identity: (client_certificate.pem(), client_key.serialize_pem()),
            foreign_pem: authority().pem(),
        }
    }

    /// Waits until the server has shaken hands once.
    ///
    /// A server's first handshake loads half of its Java library, and on a busy machine it takes longer than a
    /// client is silent with a server of which it wants a short session.
    fn warm_up(&self) {
        let deadline = Instant::now() + Duration::from_secs(60);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            loop {
                let config = Config { tls: Some(self.tls()), ..Config::default() };
                match connect(config, to("localhost", self.port, None)).await {
                    Ok(zk) => return zk.close().await.expect("closed"),
                    Err(ConnectError::Unreachable(_)) if Instant::now() < deadline => (),
                    Err(error) => panic!("no handshake with the secure port: {error:?}"),
                }
            }
        });
    }

    fn tls(&self) -> TlsConfig {
        let mut tls = TlsConfig::new(self.ca_pem.clone());
        tls.identity_pem = Some(self.identity.clone());
        tls
    }
}

fn authority() -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::new(Vec::new()).expect("no names");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("a certificate")
}

fn tls(change: impl FnOnce(&mut TlsConfig)) -> Config {
    let mut tls = SECURE.tls();
    change(&mut tls);
    Config { tls: Some(tls), ..Config::default() }
}

#[tokio::test]
async fn both_ends_show_their_certificates() {
    off_thread(|| SECURE.server.client_addr()).await;
    let config = tls(|_| ());
    assert!(!format!("{config:?}").contains("PRIVATE"));
    let zk = connect(config.clone(), to("localhost", SECURE.port, None)).await.unwrap();
    zk.create("/a", b"", CreateMode::Ephemeral, &Acl::Open).await.unwrap();
    // What one port has seen, the other has as well.
    let plain = to("127.0.0.1", SECURE.server.client_addr().port(), None);
    let plain = plain_connector().connect(plain).await.unwrap();
    assert!(present(&plain, "/a").await);
    zk.abort();
    let again = connect(config, to("localhost", SECURE.port, Some(zk.credentials()))).await.unwrap();
    assert!(present(&again, "/a").await);
    again.close().await.unwrap();
    assert!(!present(&plain, "/a").await);
}

#[tokio::test]
async fn the_certificate_has_to_be_for_the_host() {
    off_thread(|| SECURE.server.client_addr()).await;
    let why = why_not(tls(|_| ()), "127.0.0.1", SECURE.port, "is not for 127.0.0.1").await;
    assert!(why.contains("localhost"), "{why}");
    assert!(why.contains("verify_host"), "{why}");
    let unchecked = tls(|tls| tls.verify_host = false);
    let zk = connect(unchecked, to("127.0.0.1", SECURE.port, None)).await.unwrap();
    zk.close().await.unwrap();
}

#[tokio::test]
async fn strangers_are_turned_away() {
    off_thread(|| SECURE.server.client_addr()).await;
    let stranger = tls(|tls| tls.ca_pem = SECURE.foreign_pem.clone());
    let part = "signed by none of the CA certificates";
    let why = why_not(stranger, "localhost", SECURE.port, part).await;
    assert!(why.contains("ca_pem"), "{why}");
    let part = "refuses the client's certificate, or the lack of one";
    let why = why_not(tls(|tls| tls.identity_pem = None), "localhost", SECURE.port, part).await;
    assert!(why.contains("key in tls"), "{why}");
    let foreign = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(Vec::new()).unwrap().self_signed(&foreign).unwrap();
    let identity = Some((certificate.pem(), foreign.serialize_pem()));
    why_not(tls(|tls| tls.identity_pem = identity), "localhost", SECURE.port, part).await;
}

/// Why there is no connection to a server that is there, once that is told as `part` says.
///
/// What is wrong is found out by a second knock, which waits half a second for each answer: on a busy machine a
/// server's can take longer, its first handshake above all.
async fn why_not(config: Config, host: &str, port: u16, part: &str) -> String {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let error = connect(config.clone(), to(host, port, None)).await.map(drop).unwrap_err();
        let ConnectError::Unreachable(why) = error else { panic!("{error:?}") };
        assert!(why.starts_with(&format!("{host}:{port}: ")), "{why}");
        if why.contains(part) {
            return why;
        }
        assert!(Instant::now() < deadline, "{why}");
    }
}

#[tokio::test]
async fn a_certificate_that_has_expired() {
    let secure =
        off_thread(|| Secure::start("tls-expired", |own| own.not_after = rcgen::date_time_ymd(2020, 1, 1)))
            .await;
    let config = Config { tls: Some(secure.tls()), ..Config::default() };
    why_not(config, "localhost", secure.port, "certificate has expired").await;
    off_thread(move || drop(secure)).await;
}

#[tokio::test]
async fn tls_to_a_port_without_it() {
    off_thread(|| SECURE.server.client_addr()).await;
    // One server uses Netty for both its ports, the other the plain sockets that are the default.
    let plain = off_thread(|| Real::shared(Version::default()).server.client_addr().port()).await;
    for port in [SECURE.server.client_addr().port(), plain] {
        let why = why_not(tls(|_| ()), "localhost", port, "without TLS: ").await;
        assert!(why.contains("secureClientPort"), "{why}");
    }
}

#[tokio::test]
async fn plain_words_to_a_secure_port() {
    let port = off_thread(|| SECURE.port).await;
    why_not(Config::default(), "127.0.0.1", port, "speaks TLS: set tls").await;
}

#[tokio::test]
async fn a_key_that_does_not_fit_is_no_matter_of_the_network() {
    off_thread(|| SECURE.server.client_addr()).await;
    let other = KeyPair::generate().unwrap().serialize_pem();
    let misfit = tls(|tls| tls.identity_pem = Some((SECURE.identity.0.clone(), other)));
    let error = connect(misfit, to("localhost", SECURE.port, None)).await.map(drop).unwrap_err();
    assert!(matches!(error, ConnectError::BadOptions(_)), "{error:?}");
}

#[test]
fn what_cannot_be_read_is_said_at_once() {
    let changes: [fn(&mut TlsConfig); 3] = [
        |tls| tls.ca_pem = "no certificate".to_owned(),
        |tls| tls.identity_pem = Some((String::new(), "no key".to_owned())),
        |tls| tls.identity_pem = Some(("no certificate".to_owned(), SECURE.identity.1.clone())),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let error = ZooKeeperConnector::new(tls(change)).map(drop).unwrap_err();
        assert!(matches!(error, ConnectError::BadOptions(_)), "{number}: {error:?}");
    }
}
