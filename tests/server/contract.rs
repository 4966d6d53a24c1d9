//! The HTTP contract of the data plane.

use crate::support::{Server, unique};

#[test]
fn an_input_comes_back_as_its_own_output() {
    let server = Server::start(&[]);
    let input = unique("hello");
    server.infer(&input).expect_output(&input);
    assert_eq!(
        server
            .fresh_metrics()
            .value("funicular_requests_total", &[("code", "200")]),
        1.0
    );
}
