// The gallery works offline, like the pages that it shows.

import { workOffline } from "./shared/work_offline.js";

await workOffline("./offline.js");
