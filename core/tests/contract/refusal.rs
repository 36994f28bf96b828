//! Connecting where nobody answers. For worlds that have such a place.

use forelock::zk::ConnectError;

use crate::world::{World, request};

pub async fn nobody_listens(world: &dyn World) {
    let mut request = request(world, None);
    request.endpoint = world.dead_endpoint().expect("a place where nobody listens");
    let error = world.connector().connect(request).await.map(drop).unwrap_err();
    assert!(matches!(error, ConnectError::Unreachable(_)), "{error:?}");
}
