// Methods and accessors that need no `this`.
//
// Frameworks put objects behind a Proxy, as Vue's `ref` and MobX do, and programs take them apart: `const { run } = model`. Private
// fields exist on the object itself only. So each object has its methods and accessors as properties, bound to itself.

/**
 * Give an object the members of its classes as properties of its own. Called at the end of its constructor.
 * @param {object} object
 * @param {boolean} [areListed]  false if the properties are not enumerable, so that the object can be posted to a worker
 */
export function bindMembers(object, areListed = true) {
  const classes = [];
  for (let each = Object.getPrototypeOf(object); each && each !== Object.prototype; each = Object.getPrototypeOf(each)) classes.unshift(each);
  for (const members of classes) {
    for (const key of Reflect.ownKeys(members)) {
      if (key === "constructor") continue;
      const member = /** @type {PropertyDescriptor} */ (Object.getOwnPropertyDescriptor(members, key));
      for (const part of /** @type {const} */ (["value", "get", "set"])) member[part] &&= member[part].bind(object);
      Object.defineProperty(object, key, { ...member, enumerable: areListed, configurable: true });
    }
  }
}
