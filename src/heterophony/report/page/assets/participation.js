// In how many rounds each client took part.

function drawParticipation() {
  const shown = limitItems("participation", data.participation, drawParticipation);
  const figures = shown.map(({ labels }, i) => {
    const names = labels.length > 4 ? [...labels.slice(0, 3), `${labels.length - 3} more runs`] : labels;
    return createFigure(`participation ${i}`, names.join(", "));
  });
  byId("participation").replaceChildren(...figures); // insert all before drawing: their widths depend on each other
  shown.forEach(({ labels, federation, rounds_selected: selected, rounds_trained: trained }, i) => {
    const layers = [{ colour: "c0", label: "rounds", values: trained },
      { colour: "c1", label: "more without a reply", values: selected.map((n, client) => n - trained[client]) }];
    drawClientBars(figures[i], data.federations[federation].clients, [layers], 158,
      `Rounds in which each client took part, under ${labels[0]}: from ${least(trained)} to ${greatest(trained)}`);
  });
}
