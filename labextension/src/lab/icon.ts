import { LabIcon } from '@jupyterlab/ui-components';

/** Lines that flow into one block: what a compiler does. */
export const compilerIcon = new LabIcon({
  name: 'tcompile-lab:compiler',
  svgstr: `<svg xmlns="http://www.w3.org/2000/svg" width="16" viewBox="0 0 24 24"><g class="jp-icon3" fill="none" stroke="#616161" stroke-width="2"
 stroke-linecap="round" stroke-linejoin="round"><path d="M3 5h5l4 7M3 12h9M3 19h5l4-7"/><rect x="12" y="7.5" width="9" height="9" rx="1.5"/></g></svg>`
});
