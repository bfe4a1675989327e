/**
 * Writes sbom.cdx.json beside the built extension: what of other people's JavaScript is bundled, in which version, under which licence, and a
 * SHA-256 of each file that ships (CycloneDX 1.6, without dates: the same sources give the same file).
 *
 * What is bundled is read from the builds themselves: rspack's list of licences for JupyterLab's part, esbuild's list of inputs for the page.
 * A package without a licence that is known fails the build.
 */

import crypto from 'node:crypto';
import fs from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';

const home = path.join(path.dirname(fileURLToPath(import.meta.url)), '..');
const built = path.join(home, '..', 'extension', 'labextension');
const target = path.join(built, 'sbom.cdx.json');
const PERMITTED = new Set([
  'MIT',
  'ISC',
  'BSD-2-Clause',
  'BSD-3-Clause',
  'Apache-2.0',
  '0BSD',
  'BlueOak-1.0.0',
  'CC0-1.0',
  'Unlicense'
]);

const readJson = file => JSON.parse(fs.readFileSync(file, 'utf8'));

const bundled = new Map(); // name@version -> { name, version, license }
for (const p of readJson(path.join(built, 'static', 'third-party-licenses.json')).packages) {
  bundled.set(`${p.name}@${p.versionInfo}`, { name: p.name, version: p.versionInfo, license: p.licenseId });
}
for (const input of Object.keys(readJson(path.join(home, 'lib', 'standalone-inputs.json')).inputs)) {
  const found = /node_modules\/((?:@[^/]+\/)?[^/]+)\//.exec(input);
  if (found) {
    const p = readJson(path.join(home, 'node_modules', found[1], 'package.json'));
    bundled.set(`${p.name}@${p.version}`, { name: p.name, version: p.version, license: p.license });
  }
}

const unclear = [...bundled.values()].filter(p => !PERMITTED.has(p.license));
if (unclear.length) {
  console.error(
    `sbom: the licence of ${unclear.map(p => `${p.name} (${p.license})`).join(', ')} is not one that may be bundled`
  );
  process.exit(1);
}

function files(folder) {
  return fs
    .readdirSync(folder, { withFileTypes: true })
    .flatMap(e => (e.isDirectory() ? files(path.join(folder, e.name)) : [path.join(folder, e.name)]));
}

const libraries = [...bundled.entries()]
  .sort(([a], [b]) => (a < b ? -1 : 1))
  .map(([, p]) => {
    const purl = `pkg:npm/${p.name.replace('@', '%40')}@${p.version}`;
    return {
      type: 'library',
      'bom-ref': purl,
      name: p.name,
      version: p.version,
      licenses: [{ license: { id: p.license } }],
      purl
    };
  });
const shipped = files(built)
  .filter(f => f !== target)
  .sort()
  .map(f => ({
    type: 'file',
    name: path.relative(built, f).split(path.sep).join('/'),
    hashes: [{ alg: 'SHA-256', content: crypto.createHash('sha256').update(fs.readFileSync(f)).digest('hex') }]
  }));
const self = readJson(path.join(home, 'package.json'));
const bom = {
  bomFormat: 'CycloneDX',
  specVersion: '1.6',
  version: 1,
  metadata: {
    component: {
      type: 'library',
      'bom-ref': self.name,
      name: self.name,
      version: self.version,
      licenses: [{ license: { id: self.license } }]
    }
  },
  components: [...libraries, ...shipped],
  dependencies: [{ ref: self.name, dependsOn: libraries.map(l => l['bom-ref']) }]
};
fs.writeFileSync(target, JSON.stringify(bom, null, 1) + '\n');
console.log(`${libraries.length} bundled packages, ${shipped.length} files in ${path.relative(process.cwd(), target)}`);
