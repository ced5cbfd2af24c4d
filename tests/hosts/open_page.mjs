// Open a page through playwright or puppeteer. The functions that this file calls have the same names in both.

/**
 * Open `url`. `errors` collects the errors that the page writes to its console, and those that it does not catch.
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
    page,
    errors,
    evaluate: (callable, arg) => page.evaluate(`(${callable})(${JSON.stringify(arg)})`),
    close: () => page.close(),
  };
}
