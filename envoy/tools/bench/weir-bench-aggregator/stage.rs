//! The processes of a measurement: aggregators, with or without a Redis.

use std::time::Duration;

use anyhow::Result;
use weir_envoy::{Aggregator, AggregatorOptions, Redis, RedisOptions};

/// The region's store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Store {
    Memory,
    Redis,
}

/// New processes of one region; they end with this value.
pub struct Stage {
    pub aggregators: Vec<Aggregator>,
    pub redis: Option<Redis>,
}

/// Processor time so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cpu {
    pub aggregators: Duration,
    /// Redis, or the database.
    pub store: Duration,
}

impl Stage {
    pub async fn start(store: Store, aggregators: usize) -> Result<Self> {
        let redis = match store {
            Store::Memory => None,
            Store::Redis => Some(Redis::start(RedisOptions::default()).await?),
        };
        let mut stage = Self { aggregators: Vec::new(), redis };
        for _ in 0..aggregators {
            let url = stage.redis.iter().map(|redis| ("WEIR_REDIS_URL".to_owned(), redis.url()));
            let options = AggregatorOptions { environment: url.collect(), ..AggregatorOptions::default() };
            stage.aggregators.push(Aggregator::start(options).await?);
        }
        Ok(stage)
    }

    /// Where the streams of the `place`th aggregator go.
    pub fn port(&self, place: usize) -> u16 {
        self.aggregators.get(place).map_or(0, Aggregator::grpc_port)
    }

    pub fn cpu(&mut self) -> Result<Cpu> {
        let mut cpu = Cpu::default();
        for aggregator in &mut self.aggregators {
            cpu.aggregators += aggregator.process().cpu_time()?;
        }
        if let Some(redis) = &mut self.redis {
            cpu.store = redis.process().cpu_time()?;
        }
        Ok(cpu)
    }
}

impl Cpu {
    pub fn since(self, before: Cpu) -> Cpu {
        Cpu { aggregators: self.aggregators - before.aggregators, store: self.store - before.store }
    }
}
