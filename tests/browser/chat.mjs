// Use the chat page as a person does, by mouse and keyboard. Returns what it showed.

const LONG = "Plenty of words to stop the answer in the middle of, one after the other, and then some more of them. ".repeat(4);
const MARKUP = "<img src=x onerror=alert(1)> <b>bold</b>";

const MARKDOWN = "## steps\n\nfirst *this*:\n\n1. **one** item\n2. `two`\n\n```js\nlet x = '<b>';\n```";

export default async ({ page, arg }) => {
  const picture = (name) => arg.pictures && page.screenshot({ path: `${arg.pictures}/${arg.name}-${name}.png` });
  const answers = page.locator("article.assistant");
  const isIdle = () => page.getByRole("button", { name: "Send" }).waitFor();
  const texts = () => answers.locator("p").allTextContents();
  const shown = {};
  if (arg.slow) {
    await page.getByText("60 MB of 98 MB").waitFor();
    // A question is written while the model loads, and sent by a second Enter.
    await page.keyboard.type("why is the sky blue?");
    await page.keyboard.press("Enter");
    shown.waiting = await page.getByRole("textbox", { name: "Message" }).inputValue();
    await picture("loading");
    await page.evaluate(() => globalThis.endLoad());
    await page.getByText("What would you like to know?").waitFor();
    await page.keyboard.press("Enter");
    await page.getByText("42.5 tokens/s, first after 0.21 s").waitFor();
    shown.first = await texts();
    return shown;
  }
  if (arg.completes) {
    await page.getByText("Begin a text").waitFor();
    shown.suggestions = await page.locator("#suggestions").count();
    return shown;
  }
  await page.getByText("What would you like to know?").waitFor();
  await picture("welcome");

  // The keyboard: Shift+Enter breaks the line, Enter sends.
  await page.keyboard.type("why is");
  await page.keyboard.press("Shift+Enter");
  await page.keyboard.type("the sky blue?");
  await page.keyboard.press("Enter");
  await page.getByText("42.5 tokens/s, first after 0.21 s").waitFor();
  await isIdle();
  shown.first = await texts();
  shown.figures = await page.locator("#figures").innerText();
  shown.title = await page.title();

  // A settings dialog.
  await page.getByRole("button", { name: "Settings" }).click();
  await page.getByLabel("System prompt").fill("Be brief.");
  await page.getByLabel("Temperature").fill("0");
  shown.details = await page.locator("#details").innerText();
  await picture("settings");
  await page.getByRole("button", { name: "Done" }).click();

  // Stop by button and by key.
  await page.getByLabel("Message").fill(LONG);
  await page.getByRole("button", { name: "Send" }).click();
  await answers.nth(1).getByText("PLENTY OF").waitFor();
  await picture("streaming");
  await page.getByRole("button", { name: "Stop" }).click();
  await page.getByText("stopped").waitFor();
  shown.stopped = (await texts())[1];
  await page.getByLabel("Message").fill(LONG);
  await page.keyboard.press("Enter");
  await answers.nth(2).getByText("PLENTY OF").waitFor();
  await page.keyboard.press("Escape");
  await answers.nth(2).getByText("stopped").waitFor();

  // Regenerate the last answer. It is the only one that can be.
  shown.regenerates = await page.getByRole("button", { name: "Regenerate" }).count();
  await page.getByRole("button", { name: "Regenerate" }).click();
  await answers.nth(2).getByText("PLENTY OF").waitFor();
  await page.keyboard.press("Escape");
  await answers.nth(2).getByText("stopped").waitFor();
  shown.calls = await page.evaluate(() => globalThis.calls.map(({ prompt, ...rest }) => ({ ...rest, roles: prompt.map(({ role }) => role).join(" ") })));

  // Text of the model is text.
  await page.getByLabel("Message").fill(MARKUP);
  await page.keyboard.press("Enter");
  await isIdle();
  shown.markup = (await texts()).at(-1);
  shown.elements = await page.locator("#log img, #log b").count();
  await picture("conversation");

  // Markdown is shown as what it means.
  await page.getByLabel("Message").fill(MARKDOWN);
  await page.keyboard.press("Enter");
  await isIdle();
  shown.markdown = await answers.last().locator(".content").evaluate((content) => [...content.children].map((node) => node.outerHTML).join(""));
  await picture("markdown");

  // A question that does not fit comes back.
  await page.getByLabel("Message").fill("too long");
  await page.keyboard.press("Enter");
  await page.getByRole("alert").getByText("9000 tokens").waitFor();
  shown.back = await page.getByLabel("Message").inputValue();
  await picture("problem");
  shown.overflow = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  await page.getByRole("button", { name: "New chat" }).click();
  shown.left = await page.locator("article").count();

  // Without a network, the page loads and answers.
  if (arg.offline) {
    await page.context().setOffline(true);
    await page.reload();
    await page.getByRole("button", { name: "Write a haiku about the sea" }).click();
    await answers.getByText("WRITE A HAIKU ABOUT THE SEA").waitFor();
    shown.offline = true;
  }
  return shown;
};
