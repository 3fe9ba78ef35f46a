//! The harness with the real aggregator, on which the scenarios depend.

use std::time::Duration;

use weir_envoy::{Aggregator, AggregatorOptions, ports};

#[tokio::test]
async fn an_aggregator_can_be_queried_killed_and_restarted() {
    let mut aggregator = Aggregator::start(AggregatorOptions::default()).await.unwrap();
    let (grpc, admin) = (aggregator.grpc_port(), aggregator.admin_address());
    assert_eq!(aggregator.admin_get("/healthz").await.unwrap().status, 200);
    assert!(aggregator.admin_get("/metrics").await.unwrap().text().contains("# TYPE"));

    aggregator.process().kill().unwrap();
    assert!(aggregator.admin_get("/healthz").await.is_err());
    aggregator.restart().await.unwrap();
    assert_eq!((aggregator.grpc_port(), aggregator.admin_address()), (grpc, admin));
    assert_eq!(aggregator.admin_get("/readyz").await.unwrap().status, 200);

    let ended = aggregator.process().terminate(Duration::from_secs(10)).await.unwrap();
    assert!(ended.success(), "{ended}");
    drop(aggregator);
    ports::check_free(ports::local(grpc)).unwrap();
}

#[tokio::test]
async fn an_aggregator_that_cannot_start_returns_its_log() {
    let options = AggregatorOptions { region: String::new(), ..AggregatorOptions::default() };
    let Err(error) = Aggregator::start(options).await else { panic!("it started without a region") };
    assert!(format!("{error:#}").contains("WEIR_REGION"), "{error:#}");
}
