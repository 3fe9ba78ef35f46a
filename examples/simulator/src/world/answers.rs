//! Answers of a language model: what the core's `cost.usage` charges for an answer that ends, and for one that its client leaves.

use super::World;
use super::event::WorkerAt;
use crate::plan::Answers;
use crate::plan::traffic::Arrival;
use std::sync::LazyLock;
use weir_core::rules::{Config, Cost, End, Lines, Request, Stage, Trailers};

/// The tokens are as a filter has written them. The requests have no prompt.
const CONFIG: &str = r#"{"aggregator": {"cluster": "c"}, "rules": [{
    "name": "tokens", "identifier": {"constant": "all"}, "limit": 1, "window": "1m",
    "cost": {"usage": {"metadata": {"filter": "model", "input": "input", "output": "output"}}, "max": 9007199254740992,
             "reserve": {"input": 0}}
}]}"#;

static COST: LazyLock<Cost> = LazyLock::new(|| {
    let config = Config::parse(CONFIG.as_bytes()).expect("the configuration is valid");
    config.rules.into_iter().next().expect("it has a rule").cost
});

/// An answer, as far as it has arrived.
struct Answer {
    bytes: u64,
    /// Its tokens; `None` if the client has left.
    tokens: Option<u64>,
}

impl Request for Answer {
    fn header(&self, name: &[u8]) -> Lines<'_> {
        match name {
            b":status" => Lines::One(b"200"),
            b"content-type" => Lines::One(b"text/event-stream"),
            _ => Lines::None,
        }
    }

    fn for_each_header(&self, name: &[u8], line: &mut dyn FnMut(&[u8])) {
        if let Lines::One(value) = self.header(name) {
            line(value);
        }
    }

    fn property(&self, path: &[u8], out: &mut Vec<u8>) -> bool {
        let number = |number: u64| Some(number.to_le_bytes().to_vec());
        let value = match path {
            b"response\0code_details" => Some(match self.tokens {
                Some(_) => b"via_upstream".to_vec(),
                None => b"downstream_remote_disconnect".to_vec(),
            }),
            b"upstream\0local_address" => Some(b"127.0.0.1:1".to_vec()),
            b"response\0size" => number(self.bytes),
            b"request\0size" => number(1),
            b"metadata\0filter_metadata\0model\0input" => self.tokens.map(|_| b"0".to_vec()),
            b"metadata\0filter_metadata\0model\0output" => {
                self.tokens.map(|tokens| tokens.to_string().into_bytes())
            }
            _ => None,
        };
        out.extend(value.iter().flatten());
        value.is_some()
    }
}

impl World<'_> {
    /// A request whose response has ended, with what it is charged: its cost, or an estimate if its client has left.
    pub(super) fn charged(&mut self, at: WorkerAt, arrival: Arrival) -> Arrival {
        let answers = self.rules_of(&arrival).find_map(|rule| Some((rule, self.shapes[rule].rule.answers?)));
        let Some((rule, Answers { bytes_a_token: (least, most), aborted_per_mille })) = answers else {
            return arrival;
        };
        let dice = &mut self.chance.answers;
        let whole = arrival.cost * (least + dice.below(most.saturating_sub(least) + 1));
        let is_aborted = dice.per_mille(aborted_per_mille);
        let answer = match is_aborted {
            true => Answer { bytes: dice.below(whole + 1), tokens: None },
            false => Answer { bytes: whole, tokens: Some(arrival.cost) },
        };
        let Some((_, worker)) = self.worker(at) else { return arrival };
        let stage = Stage::Ended(Trailers::default());
        let end = End { response: &answer, stage, rule: rule as u16, reserved: 0 };
        let settled = COST.settle(&end, &mut worker.ratios, &mut Vec::new());
        let cost = settled.map_or(0, |settled| settled.cost);
        self.check.answered(&arrival, (is_aborted.then_some(answer.bytes), cost), least, self.now_us);
        Arrival { cost, ..arrival }
    }
}
