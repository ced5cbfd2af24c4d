// Drive the digits page as a person would, with strokes that the model was not trained on.
//
//   arg: { device, by: "mouse" | "touch" | "keyboard", digits: number[], screenshot? }
//   out: { answers, device, time, bytes, problem, announcement, overflow }

const READING_MS = 15_000;

/** Points along an ellipse, between two angles in degrees. The pad is 100 units wide. */
function arc(cx, cy, rx, ry, from, to, steps = 20) {
  return Array.from({ length: steps + 1 }, (_, i) => {
    const angle = ((from + ((to - from) * i) / steps) * Math.PI) / 180;
    return [cx + rx * Math.cos(angle), cy + ry * Math.sin(angle)];
  });
}

/** Points along straight lines between the corners. */
function line(...corners) {
  const points = corners.slice(1).flatMap(([x, y], i) => {
    const [x0, y0] = corners[i];
    return Array.from({ length: 8 }, (_, t) => [x0 + ((x - x0) * t) / 8, y0 + ((y - y0) * t) / 8]);
  });
  return [...points, corners.at(-1)];
}

const STROKES = [
  [arc(50, 50, 30, 42, -90, 270)],
  [line([36, 28], [52, 10], [52, 90])],
  [[...arc(50, 32, 25, 22, -170, 30), ...line([70, 42], [25, 90], [78, 90])]],
  [[...arc(48, 30, 22, 20, -160, 90), ...arc(48, 70, 25, 22, -90, 160)]],
  [line([30, 10], [28, 50], [75, 50]), line([70, 10], [68, 90])],
  [[...line([32, 10], [30, 45]), ...arc(47, 64, 26, 26, -130, 140)], line([32, 10], [72, 10])],
  [[...line([62, 10], [38, 40]), ...arc(50, 66, 24, 24, 190, -180)]],
  [line([25, 12], [75, 12], [42, 90])],
  [[...arc(50, 30, 18, 20, -60, -270), ...arc(50, 70, 22, 20, -90, 270), [60, 12]]],
  [[...arc(50, 34, 22, 24, 0, -360), ...line([72, 34], [68, 90])]],
];

async function drawWithMouse(page, place, strokes) {
  for (const stroke of strokes) {
    await page.mouse.move(...place(stroke[0]));
    await page.mouse.down();
    for (const point of stroke.slice(1)) await page.mouse.move(...place(point));
    await page.mouse.up();
  }
}

async function drawWithFinger(page, place, strokes) {
  const session = await page.context().newCDPSession(page);
  const touch = (type, point) => {
    const touchPoints = point ? [{ x: place(point)[0], y: place(point)[1] }] : [];
    return session.send("Input.dispatchTouchEvent", { type, touchPoints });
  };
  for (const stroke of strokes) {
    await touch("touchStart", stroke[0]);
    for (const point of stroke.slice(1)) await touch("touchMove", point);
    await touch("touchEnd");
  }
}

/** Draw a "1" with the keyboard: a vertical line from where the pen starts. */
async function drawOneWithKeys(page) {
  await page.focus("#pad");
  await page.keyboard.press("Space");
  for (let i = 0; i < 16; i++) await page.keyboard.press("ArrowDown");
  await page.keyboard.press("Space");
}

/** Wait until the page shows the expected digit, or the time is over, and return the digit that it shows. */
async function answer(page, expected) {
  const digit = page.locator("#digit");
  await page
    .waitForFunction((text) => document.getElementById("digit").textContent === text, String(expected), { timeout: READING_MS })
    .catch(() => null);
  return Number(await digit.textContent());
}

export default async function drive({ page, arg }) {
  const text = (id) => page.locator(`#${id}`).textContent();
  if (arg.device !== "auto") await page.selectOption("#device", arg.device);
  // Wait until the model is loaded, or the page shows a problem.
  await page.waitForFunction(() => {
    const words = (id) => document.getElementById(id).textContent;
    return words("problem") !== "" || !/…$/.test(words("fact-device"));
  });
  if (arg.digits.length && (await text("problem"))) throw new Error(`the page says: ${await text("problem")}`);
  const box = await page.locator("#pad").boundingBox();
  const place = ([x, y]) => [box.x + (box.width * x) / 100, box.y + (box.height * y) / 100];
  const answers = [];
  for (const digit of arg.digits) {
    await page.click("#clear");
    if (arg.by === "mouse") await drawWithMouse(page, place, STROKES[digit]);
    if (arg.by === "touch") await drawWithFinger(page, place, STROKES[digit]);
    if (arg.by === "keyboard") await drawOneWithKeys(page);
    answers.push(await answer(page, digit));
  }
  if (answers.length) await page.waitForFunction(() => document.getElementById("announcement").textContent.startsWith("Reads"));
  if (arg.screenshot) await page.screenshot({ path: arg.screenshot, fullPage: true });
  return {
    answers,
    device: await text("fact-device"),
    time: await text("fact-time"),
    bytes: await text("fact-bytes"),
    problem: await text("problem"),
    announcement: await text("announcement"),
    overflow: await page.evaluate(() => document.documentElement.scrollWidth - innerWidth),
  };
}
