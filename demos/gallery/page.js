// The gallery works offline, like the pages that it shows.

import { workOffline } from "./shared/demo.js";

await workOffline();
