// A round over the boards: one lane per board, a bar for each transfer and job.

const ACTIVITIES = ["receive", "train", "evaluate", "send"];
const chosenRound = { run: 0, t: null }; // t: the number of the round; null: the last one

function drawBoardRounds() {
  const runs = data.board_rounds;
  byId("board-rounds").hidden = !runs.length;
  if (!runs.length) return;
  const run = runs[chosenRound.run] ?? runs[0];
  const round = run.rounds.find(({ t }) => t === chosenRound.t) ?? run.rounds.at(-1);
  fillChoice("gantt-run", runs.map((r, i) => [i, r.run]), runs.indexOf(run), (value) => { chosenRound.run = value; });
  fillChoice("gantt-round", run.rounds.map(({ t }) => [t, String(t + 1)]), round.t, (value) => { chosenRound.t = value; });
  drawGantt(byId("gantt"), round);
  byId("board-rounds-table").replaceChildren(createResultTable(run.table));
}

function fillChoice(id, options, chosen, choose) {
  const select = byId(id);
  select.replaceChildren(...options.map(([value, text]) => html("option", { value }, text)));
  select.value = String(chosen);
  select.disabled = options.length < 2;
  select.onchange = () => {
    choose(Number(select.value));
    preserveView(drawBoardRounds);
  };
}

function drawGantt(figure, { t, seconds, boards }) {
  const lane = 22, top = 26, bottom = top + lane * boards.length;
  const busy = boards.map(({ name, spans }) => `${name} ${sumSeconds(spans, 1).toFixed(1)} s of training`);
  const [drawing, width] = startDrawing(figure, bottom + 44, `Round ${t + 1}, ${seconds.toFixed(1)} seconds: ${joinItems(busy)}`);
  const left = 16 + 7 * greatest([5, ...boards.map(({ name }) => Math.min(24, name.length))]);
  const end = greatest([seconds, 0.001, ...boards.flatMap(({ spans }) => spans.map((s) => s[3]))]);
  const place = createScale(0, end, left, width - 8);
  ACTIVITIES.forEach((name, i) => drawing.append(
    svg("rect", { class: `activity a${i}`, x: left + 104 * i, y: 2, width: 14, height: 12 }),
    svg("text", { x: left + 104 * i + 20, y: 12 }, name)));
  boards.forEach(({ name, spans }, row) => {
    const y = top + lane * row;
    drawing.append(svg("text", { x: left - 8, y: y + 15, "text-anchor": "end" }, shortenName(name)),
      svg("rect", { class: "lane", x: left, y: y + 2, width: width - 8 - left, height: lane - 4 }));
    for (const [activity, , from, to] of spans) {
      const moves = activity === 0 || activity === 3; // transfers are thin, so that work behind them is seen
      drawing.append(svg("rect", {
        class: `activity a${activity}`, x: place(from).toFixed(1), width: Math.max(1, place(to) - place(from)).toFixed(1),
        y: moves ? y + lane - 8 : y + 3, height: moves ? 6 : lane - 10,
      }));
    }
  });
  for (const tick of listTicks(0, end, 8)) {
    drawing.append(svg("line", { class: "grid", x1: place(tick), x2: place(tick), y1: top, y2: bottom }),
      svg("text", { x: place(tick), y: bottom + 16, "text-anchor": "middle" }, `${tick} s`));
  }
  explore(drawing, {
    point: (px, py, x, y) => {
      const board = boards[Math.floor((py - top) / lane)];
      if (!board) return hideTip();
      const when = ((px - left) / (width - 8 - left)) * end;
      const near = end / 200;
      const under = board.spans.filter((s) => s[2] - near <= when && when <= s[3] + near);
      const lines = under.slice(0, 6).map(([activity, client, from, to]) => html("p", {},
        `${ACTIVITIES[activity]}${client && `, client ${client}`}: ${(to - from).toFixed(2)} s, from ${from.toFixed(2)}`));
      return showTip(x, y, html("p", {}, board.name), ...(lines.length ? lines : [html("p", {}, "waiting")]));
    },
    step: () => false,
    leave: () => {},
  });
}

const sumSeconds = (spans, activity) =>
  spans.filter((s) => s[0] === activity).reduce((sum, s) => sum + s[3] - s[2], 0);
