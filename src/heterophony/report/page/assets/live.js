// Live: news from the dashboard replace what is shown; whether they arrive is said in words.

{
  const AGAIN = 2000; // milliseconds, where the browser would not connect again by itself

  const added = (tag, id, role, text = "") => {
    const element = document.createElement(tag);
    element.id = id;
    if (role) element.setAttribute("role", role);
    element.textContent = text;
    document.querySelector("header").append(element);
    return element;
  };

  const state = added("p", "connection", "status", "connecting…");
  const note = document.getElementById("note") ?? added("p", "note", "status");
  if (location.search) added("a", "back", "", "← all runs").href = "./";

  const say = (element, words) => { // a screen reader speaks when the text changes, only then
    if (element.textContent !== words) element.textContent = words;
  };

  const connection = (words) => {
    say(state, words);
    state.dataset.state = words;
  };

  const isBoard = Boolean(document.getElementById("board"));
  const receive = (forBoard) => (event) => {
    if (forBoard === isBoard) show(JSON.parse(event.data));
    else location.reload(); // what there is to show is of the other kind now
  };

  let source = null;
  let waiting = 0;

  function connect() {
    clearTimeout(waiting);
    source?.close();
    source = new EventSource(`events${location.search}`);
    source.onopen = () => connection("live");
    source.onmessage = receive(false);
    source.addEventListener("board", receive(true));
    source.addEventListener("devices", (event) => showDevices(JSON.parse(event.data)));
    source.addEventListener("note", (event) => say(note, JSON.parse(event.data)));
    source.onerror = () => {
      connection("reconnecting…");
      if (source.readyState === EventSource.CLOSED) waiting = setTimeout(connect, AGAIN);
    };
  }

  // A browser opens few connections to one address: pages that nobody sees give theirs back.
  function rest() {
    clearTimeout(waiting);
    source?.close();
    connection("paused");
  }

  const follow = () => (document.hidden ? rest() : connect());
  document.addEventListener("DOMContentLoaded", follow); // when the page has drawn itself
  document.addEventListener("visibilitychange", follow);
}
