// What `make lint` demands of JavaScript. Types are checked by tsc (tsconfig.json).

import js from "@eslint/js";
import globals from "globals";

// Libraries of Hugging Face, minified by tests/js/bundle_libraries.mjs.
const BUNDLES = ["runtime_js/language/jinja.js", "runtime_js/language/tokenizers.js"];

export default [
  { ignores: ["build/", "node_modules/", ".venv*/", ...BUNDLES] },
  js.configs.recommended,
  {
    // The runtime runs in pages, workers, service workers and Node, and asks which one it is in.
    languageOptions: { ecmaVersion: 2024, sourceType: "module", globals: { ...globals.browser, ...globals.node, ...globals.worker } },
    linterOptions: { reportUnusedDisableDirectives: "error" },
    rules: {
      "array-callback-return": "error",
      "default-case-last": "error",
      eqeqeq: ["error", "smart"],
      "no-constructor-return": "error",
      "no-else-return": ["error", { allowElseIf: false }],
      "no-eval": "error",
      "no-implied-eval": "error",
      "no-new-func": "error",
      "no-self-compare": "error",
      "no-template-curly-in-string": "error",
      "no-unused-vars": ["error", { argsIgnorePattern: "^_", varsIgnorePattern: "^_$", caughtErrors: "all" }],
      "no-useless-rename": "error",
      "no-useless-return": "error",
      "no-var": "error",
      "object-shorthand": "error",
      "prefer-const": "error",
      "prefer-promise-reject-errors": "error",
      "prefer-rest-params": "error",
      "prefer-spread": "error",
    },
  },
  { files: ["**/service_worker.js", "**/offline.js"], languageOptions: { globals: globals.serviceworker } },
  { files: ["demos/voice_activity/recorder.js"], languageOptions: { globals: globals.audioWorklet } },
  // It evaluates the expressions of its tests.
  { files: ["tests/js/tensors.mjs"], rules: { "no-new-func": "off" } },
  { files: ["tests/browser/extension.mjs"], languageOptions: { globals: globals.webextensions } },
];
