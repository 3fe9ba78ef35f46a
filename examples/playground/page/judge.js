// What is typed or pasted as a limit, judged by the filter's own parser in a worker of its own: a text that takes it too long, or
// breaks it, costs the worker and not the page.

const PATIENCE_MS = 10000;
let worker = null;
let newest = 0;
let last = Promise.resolve();

// What the parser says of a text; null where another one, or `forget`, came after it.
export function judgeAway(text) {
  const mine = ++newest;
  const answer = last.then(() => mine === newest ? ask(text) : null);
  last = answer.then(judged => mine === newest ? judged : null);
  return last;
}

// Nobody waits for an answer any more.
export const forget = () => { newest += 1; };

// All that was to be judged has been.
export const settled = () => last;

function ask(text) {
  worker ??= new Worker('worker.js', { type: 'module' });
  return new Promise(resolve => {
    const ends = says => { worker.terminate(); worker = null; over({ rules: [], notes: [], errors: [{ path: '', says }] }); };
    const timer = setTimeout(() => ends(`the parser was not done with it within ${PATIENCE_MS / 1000} s`), PATIENCE_MS);
    const over = judged => { clearTimeout(timer); resolve(judged); };
    worker.onmessage = ({ data: { judged, wrong, broken } }) => judged ? over(judged) : ends(wrong ?? `the parser broke over it: ${broken}`);
    worker.onerror = () => ends('the parser did not load: load the page again');
    worker.postMessage({ text });
  });
}
