//! Answers that all viewers share: each is computed and compressed once a second, whatever the number of open pages.
//!
//! A change of live control begins new answers at once, as operators look for the effect of what they have just done.

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::OnceCell;
use tokio::time::Instant;

/// How long an answer serves further viewers.
const SERVES: Duration = Duration::from_secs(1);
/// Most answers that are kept. Further ones are computed for their viewers alone.
const MAX_ANSWERS: usize = 64;

/// Path and query, and the encodings that the client accepts.
type Asked = (String, Vec<HeaderValue>);

/// The latest answers.
pub struct Answers {
    /// The revision of live control.
    revision: Box<dyn Fn() -> u64 + Send + Sync>,
    kept: Mutex<HashMap<Asked, Kept>>,
}

#[derive(Clone)]
struct Kept {
    begun: Instant,
    revision: u64,
    answer: Arc<OnceCell<Answer>>,
}

#[derive(Clone)]
struct Answer {
    headers: HeaderMap,
    body: Bytes,
}

impl Answers {
    /// No answers yet. `revision` returns that of live control.
    pub fn new(revision: impl Fn() -> u64 + Send + Sync + 'static) -> Answers {
        Answers { revision: Box::new(revision), kept: Mutex::default() }
    }

    /// The answer that is computed or to be computed; `None` without room.
    fn of(&self, asked: Asked) -> Option<Arc<OnceCell<Answer>>> {
        let revision = (self.revision)();
        let mut kept = self.kept.lock();
        let serves = |one: &Kept| one.begun.elapsed() < SERVES && one.revision == revision;
        if let Some(known) = kept.get(&asked).filter(|known| serves(known)) {
            return Some(known.answer.clone());
        }
        kept.retain(|_, one| serves(one));
        if kept.len() >= MAX_ANSWERS {
            return None;
        }
        let new = Kept { begun: Instant::now(), revision, answer: Arc::default() };
        kept.insert(asked, new.clone());
        Some(new.answer)
    }
}

/// Answers by the answer to the same request within the last second. Only successes are shared.
pub async fn share(State(answers): State<Arc<Answers>>, request: Request, next: Next) -> Response {
    if request.method() != Method::GET {
        return next.run(request).await;
    }
    let path = request.uri().path_and_query().map_or_else(String::new, ToString::to_string);
    let asked = (path, request.headers().get_all(header::ACCEPT_ENCODING).into_iter().cloned().collect());
    let Some(cell) = answers.of(asked) else { return next.run(request).await };
    let computed = cell.get_or_try_init(|| async move {
        let (head, body) = next.run(request).await.into_parts();
        if head.status != StatusCode::OK {
            return Err(Response::from_parts(head, body));
        }
        match to_bytes(body, usize::MAX).await {
            Ok(body) => Ok(Answer { headers: head.headers, body }),
            Err(_) => Err(StatusCode::INTERNAL_SERVER_ERROR.into_response()),
        }
    });
    match computed.await {
        Ok(Answer { headers, body }) => (headers.clone(), Body::from(body.clone())).into_response(),
        Err(failed) => failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::Router;
    use axum::middleware::from_fn_with_state;
    use axum::routing::get;
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
    use tokio::time::{advance, sleep};
    use tonic::codegen::Service as _;
    use tower_http::compression::CompressionLayer;

    /// Counts what is computed, each in ten milliseconds. `/fails` fails each second time.
    fn router(computed: &Arc<AtomicU64>, revision: &Arc<AtomicU64>) -> Router {
        let (count, revision) = (computed.clone(), revision.clone());
        let answer = move || {
            let count = count.clone();
            async move {
                let number = count.fetch_add(1, SeqCst);
                sleep(Duration::from_millis(10)).await;
                format!("{number} {}", "text ".repeat(100))
            }
        };
        let count = computed.clone();
        let fails = move || async move {
            match count.fetch_add(1, SeqCst) % 2 {
                0 => (StatusCode::SERVICE_UNAVAILABLE, "no"),
                _ => (StatusCode::OK, "yes"),
            }
        };
        let answers = Arc::new(Answers::new(move || revision.load(SeqCst)));
        Router::new()
            .route("/a", get(answer.clone()).post(answer))
            .route("/fails", get(fails))
            .route_layer(CompressionLayer::new())
            .route_layer(from_fn_with_state(answers, share))
    }

    async fn ask(router: &Router, path: &str, encodings: &str) -> (StatusCode, HeaderMap, Bytes) {
        let request = Request::get(path).header("accept-encoding", encodings).body(Body::empty()).unwrap();
        let (head, body) = router.clone().call(request).await.unwrap().into_parts();
        (head.status, head.headers, to_bytes(body, usize::MAX).await.unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn all_viewers_share_one_compressed_answer_a_second() {
        let [computed, revision] = [(); 2].map(|()| Arc::new(AtomicU64::new(0)));
        let router = router(&computed, &revision);
        let viewers = (0..20).map(|_| {
            let router = router.clone();
            tokio::spawn(async move { ask(&router, "/a", "gzip").await })
        });
        let mut found = Vec::new();
        for viewer in viewers.collect::<Vec<_>>() {
            found.push(viewer.await.unwrap());
        }
        assert_eq!(computed.load(SeqCst), 1);
        assert!(found.iter().all(|(status, headers, body)| {
            *status == StatusCode::OK && headers["content-encoding"] == "gzip" && *body == found[0].2
        }));
        assert!(found[0].2.len() < 200, "{} bytes", found[0].2.len());
        let (_, headers, plain) = ask(&router, "/a", "identity").await;
        assert!(headers.get("content-encoding").is_none() && plain.starts_with(b"1 text"), "{headers:?}");
        assert_eq!((ask(&router, "/a?b", "gzip").await.0, computed.load(SeqCst)), (StatusCode::OK, 3));
        // A later second, and a change of live control.
        advance(SERVES).await;
        ask(&router, "/a", "gzip").await;
        ask(&router, "/a", "gzip").await;
        assert_eq!(computed.load(SeqCst), 4);
        revision.store(1, SeqCst);
        ask(&router, "/a", "gzip").await;
        assert_eq!(computed.load(SeqCst), 5);
        let post = Request::post("/a").body(Body::empty()).unwrap();
        router.clone().call(post).await.unwrap();
        assert_eq!(computed.load(SeqCst), 6, "only reading is shared");
    }

    #[tokio::test(start_paused = true)]
    async fn failures_and_viewers_who_leave_are_not_shared() {
        let [computed, revision] = [(); 2].map(|()| Arc::new(AtomicU64::new(0)));
        let router = router(&computed, &revision);
        assert_eq!(ask(&router, "/fails", "gzip").await.0, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(ask(&router, "/fails", "gzip").await.2, "yes");
        assert_eq!((ask(&router, "/fails", "gzip").await.2, computed.load(SeqCst)), ("yes".into(), 2));
        // The first leaves before its answer; the second, who waits for it, computes it.
        let (first, second) = (router.clone(), router.clone());
        let first = tokio::spawn(async move { ask(&first, "/a", "gzip").await });
        let second = tokio::spawn(async move { ask(&second, "/a", "gzip").await });
        advance(Duration::from_millis(5)).await;
        first.abort();
        assert_eq!(second.await.unwrap().0, StatusCode::OK);
    }

    #[tokio::test(start_paused = true)]
    async fn the_number_of_answers_is_bounded() {
        let [computed, revision] = [(); 2].map(|()| Arc::new(AtomicU64::new(0)));
        let answers = Answers::new(move || revision.load(SeqCst));
        let asked = |number: usize| (format!("/{number}"), Vec::new());
        assert!((0..MAX_ANSWERS).all(|number| answers.of(asked(number)).is_some()));
        assert!(answers.of(asked(MAX_ANSWERS)).is_none() && answers.of(asked(0)).is_some());
        advance(SERVES).await;
        assert!(answers.of(asked(MAX_ANSWERS)).is_some());
        assert_eq!((answers.kept.lock().len(), computed.load(SeqCst)), (1, 0));
    }
}
