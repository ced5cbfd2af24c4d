// A page in a browser that playwright or puppeteer drives: what this uses, both name alike.

/**
 * Open `url`; `errors` collects what the page writes on its console as errors, and what it does not catch.
 * @param {any} browser
 * @param {string} url
 */
export async function openPage(browser, url) {
  const page = await browser.newPage();
  const errors = [];
  page.on("pageerror", (error) => errors.push(String(error)));
  page.on("console", (message) => {
    if (message.type() === "error") errors.push(message.text());
  });
  await page.goto(url);
  return {
    errors,
    evaluate: (callable, arg) => page.evaluate(`(${callable})(${JSON.stringify(arg)})`),
    close: () => page.close(),
  };
}
