// SPDX-License-Identifier: Apache-2.0
// The documentation's site: README.md is its first page, docs/ the rest. The sidebar is the table
// "Documentation" of README.md; a page of docs/ that neither the table nor docs/design.md links
// fails the build, as a dead link does.
import { readdirSync, readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { resolve } from 'node:path'
import { defineConfig, type DefaultTheme } from 'vitepress'

const require = createRequire(import.meta.url)
const root = resolve(__dirname, '../../..')
const source = 'https://github.com/millrace-lb/millrace/blob/main/'
const pages = ['README.md', 'CHANGELOG.md', 'CONTRIBUTING.md', 'SECURITY.md']

const read = (path: string) => readFileSync(resolve(root, path), 'utf8')
const route = (path: string) => '/' + path.replace(/\.md$/, '')

// links returns the Markdown links to pages in a text: [text](target.md).
function links(text: string, folder = ''): DefaultTheme.SidebarItem[] {
  return [...text.matchAll(/\[([^\]]+)\]\(([\w./-]+\.md)\)/g)].map(([, title, target]) => ({
    text: title.charAt(0).toUpperCase() + title.slice(1),
    link: route(folder + target),
  }))
}

function sidebar(): DefaultTheme.SidebarItem[] {
  const table = read('README.md').split('\n## Documentation\n')[1]
  const groups = [...table.matchAll(/^\| ([A-Z][^|]*?) \| (.*\]\(.*) \|$/gm)].map(([, text, row]) => ({
    text,
    items: links(row),
  }))
  const design = readdirSync(resolve(root, 'docs/design')).map((name) => ({
    text: /^# (.*)$/m.exec(read(`docs/design/${name}`))![1],
    link: route(`docs/design/${name}`),
  }))
  groups.push({ text: 'Design in detail', items: design })
  return groups
}

function checkOrphans(groups: DefaultTheme.SidebarItem[]) {
  const listed = new Set(groups.flatMap((group) => group.items!.map((item) => item.link)))
  const linked = new Set(links(read('docs/design.md'), 'docs/').map((item) => item.link))
  const orphans = [
    ...readdirSync(resolve(root, 'docs')).filter((name) => name.endsWith('.md') && !listed.has(route(`docs/${name}`))),
    ...readdirSync(resolve(root, 'docs/design')).filter((name) => !linked.has(route(`docs/design/${name}`))),
  ]
  if (orphans.length > 0) {
    throw new Error(`pages without a link in README.md's table or docs/design.md: ${orphans.join(', ')}`)
  }
}

const groups = sidebar()
checkOrphans(groups)

export default defineConfig({
  title: 'Millrace',
  description: 'A load balancer for Kubernetes clusters on bare metal',
  srcDir: root,
  srcExclude: readdirSync(root).filter((name) => name !== 'docs' && !pages.includes(name)).flatMap((name) => [name, `${name}/**`]),
  outDir: resolve(root, 'dist/site'),
  cacheDir: resolve(root, 'dist/site-cache'),
  rewrites: { 'README.md': 'index.md' },
  cleanUrls: true,
  themeConfig: {
    search: { provider: 'local' },
    sidebar: groups,
    outline: [2, 3],
    nav: [
      { text: 'Install', link: '/docs/install' },
      { text: 'Reference', link: '/docs/reference' },
      { text: 'Changes', link: '/CHANGELOG' },
    ],
    editLink: { pattern: source + ':path' },
  },
  // Pages are outside of this folder, where Vue is installed.
  vite: {
    resolve: {
      alias: [
        { find: /^vue\/server-renderer$/, replacement: require.resolve('vue/server-renderer') },
        { find: /^vue$/, replacement: resolve(require.resolve('vue/package.json'), '../dist/vue.runtime.esm-bundler.js') },
      ],
    },
  },
  markdown: {
    config(md) {
      // Vue would evaluate double braces in indented code.
      md.core.ruler.push('braces', (state) => {
        for (const block of state.tokens) if (block.type === 'code_block') block.attrSet('v-pre', '')
      })
      // Links to sources lead to the repository, and those to README.md to the first page.
      md.core.ruler.push('sources', (state) => {
        for (const block of state.tokens) {
          for (const token of block.children ?? []) {
            const target = token.type === 'link_open' ? token.attrGet('href') : null
            if (!target || /^([a-z]+:|#)/.test(target)) continue
            const folder = state.env.relativePath?.includes('/') ? state.env.relativePath.replace(/[^/]*$/, '') : ''
            const path = new URL(target, `file:///${folder}`).pathname.slice(1)
            if (path === 'README.md') token.attrSet('href', '/' + new URL(target, 'file:///').hash)
            else if (!path.startsWith('docs/') && !pages.includes(path)) token.attrSet('href', source + path)
          }
        }
      })
    },
  },
})
