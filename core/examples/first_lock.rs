//! Takes a lock, shows its token, and gives it back: `cargo run --example first_lock -- localhost:2181`.

use forelock::Client;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), forelock::Error> {
    let servers = std::env::args().nth(1).unwrap_or_else(|| "localhost:2181".to_owned());
    let client = Client::new(&servers)?;
    let held = client.mutex("/locks/order/123")?.acquire().await?;
    println!("held with token {} after {:?}, good for {:?}", held.token(), held.waited(), held.remaining());
    held.release().await?;
    client.close().await
}
