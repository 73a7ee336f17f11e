// A backend of TestRandom.
const http = require('http')

const [host, port] = '{recorder}'.split(':')

http.createServer((request, response) => {
  const chunks = []
  request.on('data', (chunk) => chunks.push(chunk))
  request.on('end', () => {
    const body = Buffer.concat(chunks)
    const headers = { ...request.headers, 'content-length': body.length }
    for (const name of ['host', 'connection', 'transfer-encoding', 'upgrade', 'expect']) delete headers[name]
    headers['x-parsed-method'] = request.method
    headers['x-parsed-target'] = request.url
    headers['x-parsed-host'] = request.headers.host
    const passed = http.request({ host, port, path: '/parsed', method: 'POST', headers }, (answer) => {
      answer.resume()
      answer.on('end', () => response.end())
    })
    passed.end(body)
  })
}).listen({port}, '127.0.0.1')
