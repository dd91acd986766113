// Live updates: the dashboard's event stream replaces the data on the page and reports the connection.

{
  const RECONNECT_MILLISECONDS = 2000; // for errors after which the browser does not reconnect by itself

  const appendToHeader = (tag, id, role, text = "") => {
    const element = document.createElement(tag);
    element.id = id;
    if (role) element.setAttribute("role", role);
    element.textContent = text;
    document.querySelector("header").append(element);
    return element;
  };

  const connection = appendToHeader("p", "connection", "status", "connecting…");
  const note = document.getElementById("note") ?? appendToHeader("p", "note", "status");
  if (location.search) appendToHeader("a", "back", "", "← all runs").href = "./";

  const setText = (element, text) => { // screen readers announce every assignment, so skip equal texts
    if (element.textContent !== text) element.textContent = text;
  };

  const setConnection = (state) => {
    setText(connection, state);
    connection.dataset.state = state;
  };

  const isRunList = Boolean(document.getElementById("run-list"));
  const receive = (forRunList) => (event) => {
    if (forRunList === isRunList) show(JSON.parse(event.data));
    else location.reload(); // a run list became a report, or the other way round: load the other page
  };

  let source = null;
  let reconnectTimer = 0;

  function connect() {
    clearTimeout(reconnectTimer);
    source?.close();
    source = new EventSource(`events${location.search}`);
    source.onopen = () => setConnection("live");
    source.onmessage = receive(false);
    source.addEventListener("run_list", receive(true));
    source.addEventListener("boards", (event) => showBoards(JSON.parse(event.data)));
    source.addEventListener("note", (event) => setText(note, JSON.parse(event.data)));
    source.onerror = () => {
      setConnection("reconnecting…");
      if (source.readyState === EventSource.CLOSED) reconnectTimer = setTimeout(connect, RECONNECT_MILLISECONDS);
    };
  }

  // A browser opens only a few connections to one address, so hidden pages close theirs.
  function pause() {
    clearTimeout(reconnectTimer);
    source?.close();
    setConnection("paused");
  }

  const connectIfVisible = () => (document.hidden ? pause() : connect());
  document.addEventListener("DOMContentLoaded", connectIfVisible); // after the page drew its first data
  document.addEventListener("visibilitychange", connectIfVisible);
}
