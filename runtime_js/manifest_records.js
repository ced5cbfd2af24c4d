// The format of manifests. Written by `python -m webmlc.package.manifest_schema`. Change webmlc/package/manifest.py.

export const FORMAT = "webmlc";
export const VERSION = 10;
/** Addresses in linear memory, in bytes: see webmlc/core/control_area.py. */
export const CONTROL = { offer: 0, done: 64, running: 128, awake: 132, loop: 192, trips: 196, chunks: 200, scratch: 256, scratch_stride: 260, machine: 264, arguments: 320, slots: 1024 };
// Constants of plans, in bytes: see webmlc/package/memory_plan.py.
export const PAGE = 65536;
export const PAGE_BYTES = 4096;
export const ALIGNMENT = {"wasm":64,"webgpu":256};
export const CONSTANT_ALIGNMENT = 256;
export const LARGE = 262144;
export const LARGEST_BUFFER = 4294901760;
/** The types of the manifest by name. @type {Record<string, any>} */
export const TYPES = {
  Manifest: {"fields":[["name","string"],["compiler","string"],["symbols",{"list":"Symbol"},[]],["inputs",{"list":"Port"},[]],["outputs",{"list":"Port"},[]],["sequences",{"map":{"optional":{"list":"string"}}},{}],["shapes",{"map":"string"},{}],["typed",{"map":"TypedValue"},{}],["texts",{"optional":"Texts"},null],["requirements",{"list":"Requirement"},[]],["checks",{"list":"Check"},[]],["states",{"list":"StatePort"},[]],["carried",{"list":"Carried"},[]],["operators",{"list":"CustomOperator"},[]],["tuned",{"list":"TunedKernel"},[]],["machines",{"list":"MachineClass"},[]],["weights",{"list":"WeightFile"},[]],["files",{"map":"File","keys":{"pattern":"^(?!\\.\\.?$)[^/\\\\:]+$"}},{}],["programs",{"map":"Program","keys":{"values":["wasm","webgpu"]}},{}]]},
  Symbol: {"fields":[["name","string"],["input","string"],["axis","integer"]]},
  Port: {"fields":[["name","string"],["dtype","DType"],["shape",{"list":"Size"}],["buffer","string"]]},
  DType: {"values":["bfloat16","bool","float16","float32","float4_e2m1fn","float64","float6_e2m3fn","float6_e3m2fn","float8_e4m3fn","float8_e4m3fnuz","float8_e5m2","float8_e5m2fnuz","float8_e8m0fnu","int16","int2","int32","int4","int64","int8","uint16","uint2","uint32","uint4","uint64","uint8"]},
  TypedValue: {"fields":[["kind","string"],["rate",{"optional":"integer"},null],["values",{"optional":{"list":"string"}},null],["labels",{"optional":{"pattern":"^(?!\\.\\.?$)[^/\\\\:]+$"}},null]]},
  Texts: {"fields":[["words",{"pattern":"^(?!\\.\\.?$)[^/\\\\:]+$"}],["inputs",{"list":"TextPort"},[]],["outputs",{"list":"TextPort"},[]],["before",{"list":{"tags":{"view":"View","take":"Take","join":"Join","normalise":"Normalise","split":"Split","tokenise":"Tokenise","append":"Append","match":"Match","count_grams":"CountGrams","parse":"Parse","print":"Print"}}},[]],["after",{"list":{"tags":{"view":"View","take":"Take","join":"Join","normalise":"Normalise","split":"Split","tokenise":"Tokenise","append":"Append","match":"Match","count_grams":"CountGrams","parse":"Parse","print":"Print"}}},[]],["constants",{"map":"TextTensor"},{}],["feeds",{"list":"string"},[]],["reads",{"list":"string"},[]]]},
  TextPort: {"fields":[["name","string"],["shape",{"list":"Size"}],["position","integer"]]},
  View: {"fields":[["type",{"values":["view"]}],["value","string"],["result","string"],["shape",{"list":"integer"}]]},
  Take: {"fields":[["type",{"values":["take"]}],["value","string"],["result","string"],["axis","integer"],["indices",{"list":"integer"}]]},
  Join: {"fields":[["type",{"values":["join"]}],["values",{"list":"string"}],["result","string"],["axis","integer"]]},
  Normalise: {"fields":[["type",{"values":["normalise"]}],["value","string"],["result","string"],["case",{"values":["lower","none","upper"]},"none"],["stop_words",{"list":"string"},[]],["folds","boolean",false]]},
  Split: {"fields":[["type",{"values":["split"]}],["value","string"],["result","string"],["counts","string"],["delimiter","string",""],["limit","integer",-1]]},
  Tokenise: {"fields":[["type",{"values":["tokenise"]}],["value","string"],["result","string"],["pattern","string",""],["separators",{"list":"string"},[]],["shortest","integer",1],["padding","string",""],["marks","boolean",false]]},
  Append: {"fields":[["type",{"values":["append"]}],["value","string"],["end","string"],["result","string"]]},
  Match: {"fields":[["type",{"values":["match"]}],["value","string"],["result","string"],["pattern","string"]]},
  CountGrams: {"fields":[["type",{"values":["count_grams"]}],["value","string"],["result","string"],["grams","string"],["shortest","integer"],["longest","integer"],["width","integer"],["skips","integer",0],["clips","boolean",false]]},
  Parse: {"fields":[["type",{"values":["parse"]}],["value","string"],["result","string"],["dtype","DType"]]},
  Print: {"fields":[["type",{"values":["print"]}],["value","string"],["result","string"]]},
  TextTensor: {"fields":[["shape",{"list":"integer"}],["texts",{"list":"string"}]]},
  Requirement: {"tuple":[{"values":["at most","broadcast","equal","stretch","unequal"]},"Size","Size","string"]},
  Check: {"tuple":["string",{"list":"string"}]},
  StatePort: {"fields":[["past","Port"],["present","string"],["rows",{"optional":"Size"},null],["size",{"optional":"Size"},null]]},
  Carried: {"fields":[["input","string"],["output","string"]]},
  CustomOperator: {"fields":[["domain","string"],["name","string"],["nodes","integer"],["origin","string"]]},
  TunedKernel: {"fields":[["kernel","string"],["variant","string"],["tuning","Tuning"],["machine","integer",0]]},
  Tuning: {"fields":[["changes","object"],["platform","string"],["ratio","number"]]},
  MachineClass: {"fields":[["device",{"values":["wasm","webgpu"]}],["engine","string"],["adapter","string",""],["is_parallel","boolean",false]]},
  WeightFile: {"fields":[["path",{"pattern":"^(?!\\.\\.?$)[^/\\\\:]+$"}],["bytes","integer"],["sha256","string"],["chunk_bytes","integer"],["chunks_sha256","string"],["tensors",{"map":{"tuple":["integer","integer"]}}]]},
  File: {"fields":[["bytes","integer"],["sha256","string"]]},
  Program: {"fields":[["buffers",{"list":"Buffer"}],["steps",{"list":"Step"}],["segments",{"list":{"tags":{"run":"Run","bind":"Bind","measure":"Measure","move":"Move","begin_list":"BeginList","collect":"Collect","stack":"Stack","jump":"Jump","jump_unless":"JumpUnless"}}}],["resources","Resources"],["sizes",{"map":"Size"},{}],["memory",{"map":"Memory","keys":{"values":["wasm","webgpu"]}},{}],["modules",{"map":{"pattern":"^(?!\\.\\.?$)[^/\\\\:]+$"}},{}],["shaders",{"map":{"pattern":"^(?!\\.\\.?$)[^/\\\\:]+$"}},{}],["shader_features",{"map":{"list":"string"}},{}],["halves",{"optional":"Halves"},null]]},
  Buffer: {"fields":[["name","string"],["shape",{"list":"Size"}],["dtype","DType","float32"],["kind",{"values":["constant","derived","input","scratch","state"]},"scratch"],["tensor",{"optional":"string"},null]]},
  Step: {"fields":[["device",{"values":["wasm","webgpu"]}],["kernel","string"],["arguments",{"list":"string"}],["outputs","integer",1],["symbols",{"list":"string"},[]],["launches",{"map":"Launch"},{}],["control",{"optional":"Control"},null],["reason","string",""],["origin",{"list":"string"},[]]]},
  Launch: {"fields":[["workgroups",{"tuple":["Size","Size","Size"]}],["entry","string",""],["integers",{"list":"integer"},[]],["sections",{"list":"Size"},[]]]},
  Control: {"fields":[["kind",{"values":["else","if","loop","next"]}],["target","integer"],["symbol","string",""],["trips",{"optional":"Size"},null]]},
  Run: {"fields":[["type",{"values":["run"]}],["device",{"values":["wasm","webgpu"]}],["first","integer"],["last","integer"],["module_first","integer",0],["once","boolean",false],["uploads",{"list":"string"},[]],["downloads",{"list":"string"},[]]]},
  Bind: {"fields":[["type",{"values":["bind"]}],["buffer","string"],["symbols",{"list":"string"}],["elements",{"list":"integer"}],["origin",{"list":"string"},[]]]},
  Measure: {"fields":[["type",{"values":["measure"]}],["buffer","string"],["symbols",{"list":"string"}],["axes",{"list":"integer"}]]},
  Move: {"fields":[["type",{"values":["move"]}],["sources",{"list":"string"}],["targets",{"list":"string"}],["shapes",{"list":{"list":"Size"}}]]},
  BeginList: {"fields":[["type",{"values":["begin_list"]}],["target","string"]]},
  Collect: {"fields":[["type",{"values":["collect"]}],["target","string"],["source","string"],["shape",{"list":"Size"}]]},
  Stack: {"fields":[["type",{"values":["stack"]}],["target","string"],["axis","integer"],["shape",{"list":"Size"}]]},
  Jump: {"fields":[["type",{"values":["jump"]}],["target","integer"]]},
  JumpUnless: {"fields":[["type",{"values":["jump_unless"]}],["target","integer"],["unless","string"]]},
  Resources: {"fields":[["weights","integer",0],["arena",{"map":{"optional":"integer"},"keys":{"values":["wasm","webgpu"]}},{}],["memory",{"optional":"integer"},null],["largest_binding",{"optional":"integer"},null],["scratch_per_thread","integer",0],["features",{"list":"string"},[]],["row",{"optional":"RowWork"},null]]},
  RowWork: {"fields":[["steps","integer"],["bytes","integer"],["bytes_per_row","integer"]]},
  Memory: {"fields":[["constants",{"list":"integer"},[]],["temporary",{"list":"integer"},[]],["derived",{"list":"integer"},[]],["states",{"list":"integer"},[]],["arena",{"list":"Place"},[]]]},
  Place: {"tuple":["integer",{"list":"integer"}]},
  Halves: {"fields":[["buffers",{"list":"integer"}],["arena",{"optional":"integer"},null]]},
};
