"use strict";
// A click on a column's head sorts its table: numbers as numbers, what is no number at the end.
for (const table of document.querySelectorAll("table")) {
  const body = table.tBodies[0];
  const number = (text) => {
    const found = text.replace("−", "-").match(/-?\d+(\.\d+)?/);
    return found ? Number(found[0]) : NaN;
  };
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const rising = head.getAttribute("aria-sort") === "descending";
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", rising ? "ascending" : "descending");
      const sign = rising ? 1 : -1;
      const rows = [...body.rows];
      const texts = rows.map((row) => row.cells[column].textContent);
      const numeric = column > 0 && texts.some((text) => !Number.isNaN(number(text)));
      const compared = (a, b) => {
        const [x, y] = [a.cells[column].textContent, b.cells[column].textContent];
        if (!numeric) return sign * x.localeCompare(y, "en", { numeric: true });
        const [p, q] = [number(x), number(y)];
        if (Number.isNaN(p) || Number.isNaN(q)) return Number.isNaN(p) - Number.isNaN(q);
        return sign * (p - q);
      };
      body.replaceChildren(...rows.sort(compared));
    });
  });
}
